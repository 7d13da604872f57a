"""The reward of predictions inside an episode: what a config may say, and the scores; turns are in on_trl and on_verl."""

import math

import pytest

from wm_plugin.errors import UserError
from wm_plugin.rewards.prediction import PredictionReward


def test_scores_are_those_of_the_reward_and_no_prediction_is_0():
    block = PredictionReward(reward="exact")
    assert block.scores(["a", None, "b"], ["a", "a", "a"], {}) == [1.0, 0.0, 0.0]
    assert block.scores([None, None], ["a", "a"], {}) == [0.0, 0.0]


def test_a_function_of_your_own_may_wait_and_may_give_no_score():
    async def reward(predictions, targets, level):
        return [
            math.nan if one == "?" else float(one == target) + of
            for one, target, of in zip(predictions, targets, level, strict=True)
        ]

    block = PredictionReward(reward=reward)
    assert block.scores(["?", None, "b"], ["a", "b", "b"], {"level": [1, 2, 3], "other": [0, 0, 0]}) == [None, 0.0, 4.0]


def test_a_reward_that_fails_is_one_line():
    def reward(predictions, targets):
        raise ZeroDivisionError("of a user's own")

    with pytest.raises(UserError, match=r"prediction_reward: .*of a user's own"):
        PredictionReward(reward=reward).scores(["a"], ["a"], {})


@pytest.mark.parametrize(("level", "bonus"), [("turn", 0.0), ("sum", 0.75), ("mean", 0.25)])
def test_what_an_episode_gains(level, bonus):
    block = PredictionReward(coeff=0.5, level=level)
    assert block.bonus([1.0, 0.5, None, 0.0]) == bonus
    assert block.bonus([None]) == 0.0


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"reward": 3}, "reward is 3; write a name, or {path: NAME"),
        ({"reward": {"name": "exact"}}, "write a name, or {path: NAME"),
        ({"reward": {"path": "exact", "kwarg": {}}}, "kwarg.*kwargs"),
        ({"reward": {"path": "exact", "kwargs": [1]}}, "reward: kwargs is .*write the arguments of exact by name"),
        (
            {"reward": {"path": "exact", "kwargs": {"tag": "next_state"}}},
            "leave it out, and write tag beside the reward",
        ),
        ({"reward": "exakt"}, "exact"),
        ({"tag": "think"}, "tag is 'think'; write a name of its own"),
        ({"tag": ""}, "tag"),
        ({"coeff": -1}, "coeff"),
    ],
)
def test_mistakes_are_refused_before_a_reward_is_made(block, message):
    with pytest.raises(UserError, match=message) as error:
        PredictionReward.read(block, "prediction_reward")
    assert "\n" not in str(error.value)
