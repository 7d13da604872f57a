"""Which samples are easy, at which threshold a share of them is, and which of them stay. By hand, and against the definition."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.predictions import PROMPTS, grid_transitions
from wm_plugin.data import easy
from wm_plugin.data.easy import decisive, mean_reward, solve_threshold
from wm_plugin.data.prompts import load
from wm_plugin.data.schema import Action, Observation, Transition
from wm_plugin.data.scores import ByObserver, real_valued, score
from wm_plugin.data.transitions import is_validation, read_transitions
from wm_plugin.errors import UserError
from wm_plugin.rewards import ExactReward, RougeReward


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(PROMPTS)
    return load(str(path))


def written(text, thought=""):
    return f"<think>{thought}</think><next_state>{text}</next_state>"


# The rule, and the threshold

HAND = [[0.1, 0.9], [0.3, 0.2], [0.5, 0.5], [0.7, 1.0]]  # at τ_easy = 0 the nearest prediction decides: .1, .2, .5, .7


@pytest.mark.parametrize(
    ("tau_easy", "wanted"),
    [(0.0, [0.1, 0.2, 0.5, 0.7]), (0.49, [0.1, 0.2, 0.5, 0.7]), (0.5, [0.9, 0.3, 0.5, 1.0]), (1.0, [math.inf] * 4)],
)
def test_the_distance_that_decides(tau_easy, wanted):
    assert [decisive(sample, tau_easy) for sample in HAND] == wanted


def test_equality_is_not_easy():
    assert mean_reward([0.2, 0.4], 0.2) == 0.0  # the distance must be below the threshold
    assert mean_reward([0.1, 0.4], 0.2) == 0.5
    assert decisive([], 0.0) == math.inf
    assert decisive([0.1] * 3 + [0.9] * 7, 0.3) == 0.9  # 3 of 10 are not more than 0.3
    assert decisive([0.1] * 4 + [0.9] * 6, 0.3) == 0.1


@pytest.mark.parametrize(
    ("target", "threshold", "easy_samples"),
    [
        (0.0, 0.1, 0),
        (0.25, 0.2, 1),
        (0.3, 0.2, 1),
        (0.375, 0.2, 1),  # as near to 1/4 as to 1/2: the smaller share
        (0.4, 0.5, 2),
        (0.75, 0.7, 3),
        (1.0, 1.0, 4),
    ],
)
def test_the_threshold_for_a_share_by_hand(target, threshold, easy_samples):
    solution = solve_threshold(HAND, 0.0, target)
    assert solution == threshold
    assert sum(mean_reward(sample, solution) > 0 for sample in HAND) == easy_samples


@pytest.mark.parametrize(
    ("samples", "target", "threshold"),
    [
        *(([[0.4, 0.8]] * 5, target, 0.4) for target in (0.0, 0.3, 0.5)),  # all are easy, or none
        *(([[0.4, 0.8]] * 5, target, 1.0) for target in (0.51, 1.0)),
        ([[0.1], [0.3], [0.3], [0.3], [0.6]], 0.4, 0.3),  # 1 of 5 is nearer than 4 of 5
        ([[0.1], [0.3], [0.3], [0.3], [0.6]], 0.6, 0.6),
        ([[0.1], [0.3], [0.3], [0.3], [0.6]], 0.5, 0.3),  # as near: fewer are easy
        ([[1.0], [1.0], [0.2]], 1.0, 1.0),  # what holds no prediction is never easy
        ([[1.0], []], 1.0, 1.0),
    ],
)
def test_ties_go_together(samples, target, threshold):
    assert solve_threshold(samples, 0.0, target) == threshold


def test_there_is_no_threshold_without_predictions():
    with pytest.raises(UserError, match="no predictions"):
        solve_threshold([], 0.0, 0.3)


DISTANCES = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0])


@given(
    st.lists(st.lists(DISTANCES, max_size=6), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 1.0]),
)
def test_no_threshold_comes_nearer(samples, tau_easy, target):
    def off(threshold):
        share = Fraction(sum(mean_reward(s, threshold) > tau_easy for s in samples), len(samples))
        return abs(share - Fraction(str(target)))

    threshold = solve_threshold(samples, tau_easy, target)
    assert all(off(threshold) <= off(other / 40) for other in range(41))
    for sample in samples:
        assert (mean_reward(sample, threshold) > tau_easy) == (decisive(sample, tau_easy) < threshold)


# Distances


def test_distances_are_those_of_the_predictions_alone(prompts):
    first, second, third = grid_transitions(3)[:3]
    truth = first.observation.text
    outputs = [written(truth), written("x"), written("x", thought=truth), truth, "", f"<next_state>{truth}"]
    rows = list(easy.distances([(first, outputs), (second, []), (third, ["?"])], ExactReward(), prompts))
    assert [row.values for row in rows] == [(0.0, 1.0, 1.0, 1.0, 1.0, 0.0), (), (1.0,)]
    assert [row.malformed for row in rows] == [2, 0, 1]
    assert not any(row.alike for row in rows)
    assert next(easy.distances([(first, ["?", "?"])], ExactReward(), prompts)).alike
    assert (rows[0].trajectory, rows[0].turn, rows[0].call) == (first.trajectory, 0, None)


def test_a_distance_is_free_of_the_noise_of_floats(prompts):
    transition = grid_transitions(1)[0]
    (row,) = easy.distances(
        [(transition, [written("x")])], lambda predictions, *_, **__: [0.8] * len(predictions), prompts
    )
    assert row.values == (0.2,)
    assert mean_reward(row.values, 0.2) == 0.0


def test_an_observation_that_holds_the_tag_is_compared_all_the_same(prompts):
    transition = Transition(
        trajectory="t", turn=0, history=(), action=Action(text="a"),
        observation=Observation(kind="environment", text="see <next_state>"),
    )  # fmt: skip
    (row,) = easy.distances([(transition, [written("see it"), "see"])], RougeReward(), prompts)
    assert 0 < row.values[0] < 1
    assert row.values[1] == 1.0


def test_a_reward_sees_what_it_may_and_gives_a_number_each(prompts):
    transition, call = grid_transitions(1)[0], {}

    def reward(predictions, targets, **columns):
        call.update(predictions=predictions, targets=targets, **columns)
        return [math.nan, None, 0.5]

    outputs = [written(text, thought="secret") for text in "abc"]
    ((_, _, scores),) = score([(transition, outputs)], reward, prompts)
    assert scores == [None, None, 0.5]
    assert call["predictions"] == ["a", "b", "c"]
    assert call["targets"] == [transition.observation.text] * 3
    assert call["observer"] == ["environment"] * 3
    assert call["action"] == [transition.action.text] * 3
    assert call["context"] == [f"# Initial state\n{transition.context.initial_state}"] * 3
    with pytest.raises(UserError, match="gave 1 values for 3 predictions"):
        list(score([(transition, outputs)], lambda *_, **__: [1.0], prompts))


def test_rwml_goes_by_who_observes():
    reward = ByObserver(lambda *_: [0.1], lambda predictions, _: [0.9] * len(predictions))
    assert reward(["a", "b", "c"], ["", "", ""], observer=["user", "tool", "environment"]) == [0.9, 0.1, 0.9]
    with pytest.raises(UserError, match="--embedding-model PATH .* or --reward rouge"):
        real_valued("rwml")(["a"], ["a"], observer=["user"])
    assert real_valued("rwml")(["a b"], ["a b"], observer=["tool"]) == [1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("embedding", "--embedding-model PATH"),
        ("rougge", "did you mean 'rouge'"),
        ("wm_plugin.rewards:EmbeddingReward", "cannot be made without arguments"),
    ],
)
def test_rewards_that_cannot_be_had(name, message):
    with pytest.raises(UserError, match=message):
        real_valued(name)


# What stays


def made(transitions, values):
    return [
        easy.Distances(t.trajectory, t.turn, t.observation.call, tuple(row))
        for t, row in zip(transitions, values, strict=True)
    ]


def test_hard_ones_stay_and_a_share_of_the_easy_ones(tmp_path):
    transitions = grid_transitions(400)
    values = [[0.05, 0.9] if index % 2 else [0.2, 0.9] for index in range(len(transitions))]
    out = tmp_path / "t.jsonl"
    report = easy.write_filtered(transitions, made(transitions, values), out, threshold=0.2, keep=0.1)
    kept = list(read_transitions(out))
    hard = transitions[::2]
    assert [t for t in kept if t in hard] == hard
    assert kept == [t for t in transitions if t in kept]
    assert report.easy == len(transitions) // 2
    assert report.kept == len(kept)
    assert 0.07 < (len(kept) - len(hard)) / report.easy < 0.13
    assert report.as_dict() == {
        "threshold": 0.2,
        "tau_easy": 0.0,
        "predicted": len(transitions),
        "easy": len(transitions) // 2,
        "easy_share": (len(transitions) // 2) / len(transitions),
        "kept": len(kept),
        "dropped": len(transitions) - len(kept),
        "means": {"0.00": len(hard), "0.50": report.easy},
    }
    rows = [json.loads(line) for line in (tmp_path / "t.easy.jsonl").read_text().splitlines()]
    assert sum(row["kept"] for row in rows) == len(kept)
    assert rows[1] | {"kept": None} == {
        "trajectory": transitions[1].trajectory,
        "turn": transitions[1].turn,
        "call": None,
        "easy": True,
        "kept": None,
        "mean": 0.5,
        "distances": [0.05, 0.9],
    }


def test_whether_an_easy_one_stays_depends_on_nothing_but_itself_and_the_seed(tmp_path):
    transitions = grid_transitions(100)

    def kept(chosen, seed=0, keep=0.5):
        values = [[0.0]] * len(chosen)
        easy.write_filtered(chosen, made(chosen, values), tmp_path / "t.jsonl", threshold=0.1, keep=keep, seed=seed)
        return [transition.to_bytes() for transition in read_transitions(tmp_path / "t.jsonl")]

    everything = kept(transitions)
    assert kept(transitions[50:]) == [line for line in everything if line in {t.to_bytes() for t in transitions[50:]}]
    assert kept(transitions, seed=1) != everything
    assert kept(transitions, keep=0) == []
    assert len(kept(transitions, keep=1)) == len(transitions)
    assert set(kept(transitions, keep=0.2)) < set(everything)


def test_the_share_that_trains_the_filter_is_whole_tasks_and_none_of_the_validation_splits_doing():
    transitions = grid_transitions(600)
    trains = {t.task_id for t in transitions if easy.trains_filter(t, 0.1)}
    assert 30 < len(trains) < 90
    assert not any(easy.trains_filter(t, 0.1) for t in transitions if t.task_id not in trains)
    assert not any(easy.trains_filter(t, 0) for t in transitions)
    # a split by the same function would find nothing left after the validation split was taken out
    left = [t for t in transitions if not is_validation_task(t.task_id)]
    assert any(easy.trains_filter(t, 0.1) for t in left)


def is_validation_task(task):
    from wm_plugin.data import Trajectory

    return is_validation(Trajectory(turns=(), task_id=task), 0.1)
