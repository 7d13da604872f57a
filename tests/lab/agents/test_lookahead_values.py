"""The arithmetic of look-ahead, by hand."""

import math

import pytest

from wm_plugin.errors import UserError
from wm_plugin.lab.agents.lookahead_values import (
    Continuation,
    LookAheadConfig,
    choose,
    most_frequent,
    most_likely,
    samples_for,
    value_of,
)
from wm_plugin.worlds.agents.outcomes import MARKS, Marks


def ended(first: str, turns: int = 1, *, won: bool = True, rewards: tuple[float, ...] = ()) -> Continuation:
    return Continuation(first, turns, True, won, rewards)


LOST = Continuation("z", 3, False, False)


def test_success_and_length_are_discounted_by_the_turns_to_them_and_what_comes_at_once_is_not():
    config = LookAheadConfig(discount=0.5)
    assert [value_of(ended("a", turns), config) for turns in (1, 2, 4)] == [1.0, 0.5, 0.125]
    assert value_of(ended("a", 2, won=False), config) == 0
    length = LookAheadConfig(value="length", discount=0.5)
    assert value_of(ended("a", 2, won=False), length) == 0.5
    assert value_of(LOST, length) == 0  # its end was not imagined
    assert value_of(Continuation("a"), config) == 0  # nothing was


def test_rewards_are_summed_with_their_discount():
    config = LookAheadConfig(value="reward", discount=0.5)
    assert value_of(Continuation("a", 3, rewards=(1.0, -2.0, 4.0)), config) == 1.0 - 1.0 + 1.0


def test_an_action_is_worth_the_mean_of_its_episodes():
    # b reaches the goal once in two, a twice in three
    drawn = [ended("b"), LOST, ended("a"), Continuation("a", 2), Continuation("b", 2), ended("a")]
    choice = choose(drawn, LookAheadConfig(discount=1.0))
    assert (choice.place, choice.score, choice.imagined) == (2, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert choice.any_success


def test_disagreement_is_penalised():
    # a: 1 and 0, mean .5, deviation .5; b: .45 twice, deviation 0
    rewards = (("a", 1.0), ("a", 0.0), ("b", 0.45), ("b", 0.45))
    drawn = [Continuation(first, 1, rewards=(reward,)) for first, reward in rewards]
    config = LookAheadConfig(value="reward", discount=1.0)
    assert choose(drawn, config).place == 0
    cautious = choose(drawn, LookAheadConfig(value="reward", discount=1.0, penalty=0.2))
    assert (cautious.place, cautious.score) == (2, pytest.approx(0.45))
    assert choose(drawn[:2], LookAheadConfig(value="reward", penalty=0.5)).score == pytest.approx(0.25)


def test_where_nothing_is_worth_more_than_the_floor_it_acts_as_it_would():
    drawn = [Continuation("a", 2), ended("b", 2)]
    assert choose(drawn[:1], LookAheadConfig()).score is None
    assert choose(drawn, LookAheadConfig(floor=0.9)).place == 0
    assert choose(drawn, LookAheadConfig(floor=0.89)).place == 1
    fallen = choose([*drawn, Continuation("c", 1)], LookAheadConfig(floor=2.0), own=2)
    assert (fallen.place, fallen.score, fallen.imagined, fallen.any_success) == (2, None, 0.0, True)


def test_of_equals_the_policy_has_the_word():
    drawn = [ended("a"), ended("b"), ended("b"), ended("c")]
    assert choose(drawn, LookAheadConfig()).place == 1  # it sampled b twice
    assert choose([drawn[3], *drawn[:2]], LookAheadConfig()).place == 0  # the first of equals


def test_majority_and_the_likeliest():
    drawn = [Continuation(first, logp=logp) for first, logp in (("a", -1.0), ("b", -3.0), ("b", -3.0), ("c", -0.5))]
    assert most_frequent(drawn) == 1
    assert most_frequent([drawn[3], drawn[0]]) == 0
    assert most_likely(drawn) == 3
    with pytest.raises(UserError, match="take majority"):
        most_likely([Continuation("a")])


@pytest.mark.parametrize(
    ("budget", "each", "count"), [(100, 10, 10), (104, 10, 10), (105, 10, 11), (3, 10, 1), (9, 0, 1)]
)
def test_equal_compute_is_to_the_nearest_whole_sample(budget, each, count):
    assert samples_for(budget, each) == count


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("continuations", 0),
        ("value", "joy"),
        ("discount", 1.1),
        ("penalty", float("nan")),
        ("marks", {"end": "!"}),
    ],
)
def test_a_value_out_of_range_names_its_field(field, value):
    with pytest.raises(UserError, match=f"^(look_ahead.)?{field}|marks.over"):
        LookAheadConfig(**{field: value})


def test_a_value_that_nothing_tells_is_refused():
    for given, word in (({}, "marks.won"), ({"value": "length"}, "marks.over"), ({"value": "reward"}, "marks.reward")):
        with pytest.raises(UserError, match=word):
            LookAheadConfig(**given).check_marks()
    LookAheadConfig(marks={"won": "P"}).check_marks()
    LookAheadConfig(world_model="real", value="reward").check_marks()
    LookAheadConfig(world_model="other").check_marks()


def test_marks_are_read():
    grid = MARKS["grid"]
    assert [(one.over, one.won) for one in map(grid.outcome, ("..P.!", "..A.!", "..P.>", "..A.>\n", "..P.!\n"))] == [
        (True, True),
        (True, False),
        (False, False),
        (False, False),
        (True, True),
    ]
    assert Marks(won="Done").outcome("Done.").over  # what is won is over
    assert not Marks(over="!").outcome("!").won
    reward = Marks(reward="Reward:")
    said = [
        "Reward: 1.5.",
        "Reward:1\nReward: -2, and",
        "Reward: much",
        "Reward: inf",
        "Reward:",
        "none",
        "Reward: " + "9" * 500,
    ]
    assert [reward.outcome(text).reward for text in said] == [1.5, -2.0, 0.0, 0.0, 0.0, 0.0, pytest.approx(1e23)]


def test_numbers_without_measure_are_no_rewards():
    marks = Marks(reward="Reward:")
    for text in ("1e200", "-1e200", "1e999", "nan", "inf"):
        assert marks.outcome(f"Reward: {text}").reward == 0.0
    assert marks.outcome("Reward: -1e50").reward == -1e50
    most = [Continuation("a", 1, rewards=(1e100,) * 64), Continuation("a", 1, rewards=(-1e100,))]
    assert math.isfinite(choose(most, LookAheadConfig(value="reward", penalty=1.0, floor=-1e200, marks=marks)).score)
