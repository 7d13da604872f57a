"""A reward as a host calls it: columns, scores, names."""

import math

import numpy as np
import pytest
import torch

from wm_plugin.errors import UserError
from wm_plugin.rewards import RougeReward
from wm_plugin.rewards.hosted import HostedReward, RewardError


def by_turn(predictions, targets, turn, level="easy"):
    return [0.0] * len(predictions)


def with_all(predictions, targets, **columns):
    return [0.0] * len(predictions)


def positional(predictions, targets, /):
    return [0.0] * len(predictions)


@pytest.mark.parametrize(
    ("reward", "columns"),
    [
        (by_turn, {"turn", "level"}),
        (with_all, {"turn", "level", "other"}),
        (positional, set()),
        (lambda *texts, turn=0: [0.0], {"turn"}),
    ],
)
def test_a_reward_gets_the_columns_of_its_signature(reward, columns):
    available = {name: [1] for name in ("turn", "level", "other", "predictions", "targets")}
    assert HostedReward("mine", reward).columns(available).keys() == columns
    assert HostedReward("mine", reward)(["p"], ["t"], **available) == [0.0]


def test_a_column_that_is_needed_and_missing():
    with pytest.raises(UserError, match="^reward mine needs the column 'turn'; did you mean 'turns'\\?$"):
        HostedReward("mine", by_turn).columns({"turns": [1]})


@pytest.mark.parametrize("reward", [list, lambda predictions: [], lambda predictions, **columns: []])
def test_a_reward_takes_predictions_and_targets_first(reward):
    with pytest.raises(UserError, match="reward mine takes .*; predictions and targets come first"):
        HostedReward("mine", reward)


def test_a_reward_that_would_score_the_reasoning_is_refused():
    with pytest.raises(UserError, match="reward rouge has no tag"):
        HostedReward("rouge", RougeReward())
    reward = HostedReward("wm_plugin.rewards:RougeReward", RougeReward(tag=""))
    reward(["a"], ["a"])
    assert reward.figures == {"wm/RougeReward/no_prediction": 0.0, "wm/RougeReward/no_tokens": 0.0}


@pytest.mark.parametrize(
    "result", [[1, 0], (True, False), np.array([1.0, 0.0]), torch.tensor([1, 0]), [np.float32(1), np.int64(0)]]
)
def test_scores_are_floats_on_every_host(result):
    for optional in (False, True):
        scores = HostedReward("mine", with_all, optional=optional).outcomes(result, 2)
        assert scores == [1.0, 0.0]
        assert {type(score) for score in scores} == {float}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("high", "a str"), (math.inf, "inf"), (10**400, "inf"), (1j, "a complex"), (None, "None"), (math.nan, "nan")),
        *((torch.zeros(()), "a Tensor"), ([0.0], "a list")),
    ],
)
def test_a_value_that_is_no_score_is_an_error_of_its_row_alone(value, shown):
    good, bad = HostedReward("mine", with_all).outcomes([0.5, value], 2)
    assert good == 0.5
    assert type(bad) is RewardError
    assert str(bad).startswith(f"reward mine returned {shown} for a row; this host needs a finite number")
    (optional,) = HostedReward("mine", with_all, optional=True).outcomes([value], 1)
    assert isinstance(optional, RewardError) == (shown not in ("None", "nan"))


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([0.5], "returned 1 scores for 2 predictions; write one for each"),
        (np.zeros(3), "returned 3 scores for 2 predictions; write one for each"),
        *(
            (value, f"returned {kind}; write list[float], a score for each prediction")
            for value, kind in (
                (0.5, "float"),
                (np.array(0.5), "float"),
                (None, "NoneType"),
                ("ab", "str"),
                ({}, "dict"),
            )
        ),
        (ValueError("no"), "raised ValueError: no"),
    ],
)
def test_a_call_that_fails_fails_for_all_of_its_rows(result, reason):
    errors = HostedReward("mine", with_all).outcomes(result, 2)
    assert [str(error) for error in errors] == [f"reward mine {reason}"] * 2
    assert errors[0] is not errors[1]
