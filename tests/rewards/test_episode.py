"""WMAct's rewards, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.errors import UserError
from wm_plugin.rewards.episode import EpisodeReward, discounted, rescale_by_effective_actions


def test_the_outcome_is_rescaled_by_the_share_of_effective_actions():
    # all of them, three of four, none, no action at all, a lost episode
    assert rescale_by_effective_actions([1, 1, 1, 1, 0], [4, 3, 0, 0, 2], [4, 4, 5, 0, 2]) == [1, 0.75, 0, 0, 0]


def test_inconsistent_counts():
    with pytest.raises(UserError, match="episode 1 has 3 effective actions of 2"):
        rescale_by_effective_actions([1, 1], [1, 3], [1, 2])
    with pytest.raises(UserError, match="outcomes 2, effective 1, actions 2"):
        rescale_by_effective_actions([1, 1], [1], [1, 2])


def test_penalties():
    counts = {"actions": [4, 4, 0], "effective": [3, 4, 0], "invalid": [2, 0, 0]}
    assert EpisodeReward()([1, 1, 1], **counts) == pytest.approx([0.65, 1, 0])
    assert EpisodeReward(rescale=False, format_penalty=0.0)([1, 1, 0], **counts) == [1, 1, 0]
    assert EpisodeReward(rescale=False, action_penalty=0.1)([1, 1, 0], **counts) == pytest.approx([0.5, 0.6, 0])
    two = EpisodeReward(rescale=False, turn_penalty=0.1, action_penalty=0.01, format_penalty=0)
    assert two([1, 1, 0], **counts, turns=[1, 3, 2]) == pytest.approx([0.86, 0.66, -0.2])
    with pytest.raises(UserError, match="turn_penalty is set, but the column of turns is missing"):
        two([1, 1, 0], **counts)


def test_figures_of_the_last_call():
    reward = EpisodeReward()
    reward([1, 0], actions=[4, 4], effective=[4, 1], invalid=[0, 1])
    assert reward.figures == {"outcome": 0.5, "effective_share": 0.625, "invalid_episodes": 0.5}
    reward([1], actions=[0], effective=[0])
    assert reward.figures == {"outcome": 1.0, "effective_share": 0.0, "invalid_episodes": 0.0}
    assert reward([], actions=[], effective=[]) == []


@pytest.mark.parametrize("value", [-0.1, True, "much", float("nan")])
def test_invalid_penalties(value):
    for name in ("format_penalty", "turn_penalty", "action_penalty"):
        with pytest.raises(UserError, match=f"{name} is"):
            EpisodeReward(**{name: value})


def test_the_terminal_reward_reaches_every_turn():
    assert discounted([1.0, 2.0, 3.0], [3, 1, 0], gamma=0.5) == [[0.25, 0.5, 1.0], [2.0], []]
    assert discounted([0.7], [4]) == [[0.7] * 4]
    assert discounted([1.0], [2], gamma=0.0) == [[0.0, 1.0]]
    with pytest.raises(UserError, match="gamma is 1.5"):
        discounted([1.0], [2], gamma=1.5)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_it_never_raises_the_outcome(episodes):
    outcomes = [outcome for outcome, _, _ in episodes]
    effective = [min(a, b) for _, a, b in episodes]
    actions = [max(a, b) for _, a, b in episodes]
    scaled = rescale_by_effective_actions(outcomes, effective, actions)
    assert all(0 <= after <= before for after, before in zip(scaled, outcomes, strict=True))


def test_gamma_is_the_first_turn_s():
    reward = EpisodeReward(gamma=0.5)
    counts = {"actions": [4, 4, 4, 4], "effective": [4, 4, 2, 0]}
    assert reward([1, 1, 1, 0], **counts, turns=[1, 3, 2, 0]) == [1, 0.25, 0.25, 0]
    assert [turns[0] for turns in discounted([1, 1, 0.5], [1, 3, 2], gamma=0.5)] == [1, 0.25, 0.25]
    with pytest.raises(UserError, match="the column of turns is missing"):
        reward([1], actions=[1], effective=[1])
    with pytest.raises(UserError, match="gamma is True"):
        EpisodeReward(gamma=True)
