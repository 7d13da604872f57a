"""The rubric and its anchor, against a judge on localhost."""

import asyncio
import math

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("re2")

from support.openai_server import OpenAIServer, judge_at, verdict
from wm_plugin.errors import UserError
from wm_plugin.rewards import HybridReward, RubricReward, RuleReward

A = {"regex": "^a"}


def of(server, **settings):
    return HybridReward({"server": judge_at(server)}, **settings)


def scored(score):
    return lambda body: verdict(score)


@pytest.mark.parametrize(
    ("score", "holds", "reward"),
    [(5, True, 25), (5, False, 22.5), (1, True, 7), (1, False, 4.5), (3, True, 16), (5, None, 25), (1, None, 5)],
)
def test_by_hand(score, holds, reward):
    """(9 · 5 · score + 25 · holds) / 10; without a verifier 5 · score."""
    prediction, verifier = ("a" if holds else "b"), (None if holds is None else A)
    with OpenAIServer(scored(score)) as server:
        assert of(server)([prediction], ["t"], verifier=[verifier]) == [pytest.approx(reward)]
        assert of(server, scale="unit")([prediction], ["t"], verifier=[verifier]) == [pytest.approx(reward / 25)]


def test_weights():
    with OpenAIServer(scored(2)) as server:
        assert of(server, weights=[1, 1])(["a"], ["t"], verifier=[A]) == [17.5]
        assert of(server, weights=[1, 0])(["a"], ["t"], verifier=[A]) == [10]
        assert of(server, weights=[0, 1])(["a", "b"], ["t", "t"], verifier=[A, A]) == [25, 0]


def test_each_part_has_its_figures():
    with OpenAIServer(scored(3)) as server:
        reward = of(server, tag="next_state")
        outputs = ["<next_state>a</next_state>", "<next_state>b</next_state>", "a", "<next_state>a</next_state>"]
        assert reward(outputs, ["t"] * 4, verifier=[A, A, A, None]) == [16, 13.5, 0, 15]
    figures = reward.figures
    assert (figures["hybrid/rubric"], figures["hybrid/rule"]) == ((15 * 3 + 0) / 4, pytest.approx(25 / 3))
    assert (figures["rules/no_verifier"], figures["rules/verified"], figures["rules/passed"]) == (0.25, 0.75, 1 / 3)
    assert (figures["no_prediction"], figures["judged"], figures["rubric/format"]) == (0.25, 0.75, 3)


def test_a_judge_that_fails_leaves_the_rule():
    with OpenAIServer(lambda body: "I cannot say") as server:
        reward = of(server)
        assert reward(["a", "b", "a"], ["t"] * 3, verifier=[A, A, None]) == [2.5, 0, 0]
    assert reward.figures["failure_share"] == 1
    assert reward.figures["rules/passed"] == 0.5


def test_inside_an_event_loop():
    with OpenAIServer(scored(5)) as server:
        reward = of(server)
        assert asyncio.run(reward.call_async(["a", "b"], ["t", "t"], verifier=[A, A])) == [25, 22.5]
    assert reward.figures["rules/passed"] == 0.5


def test_instances_are_accepted_too():
    with OpenAIServer(scored(5)) as server:
        rubric = RubricReward(judge_at(server))
        rules = RuleReward(verifier=A, scale=3, unverified=math.nan)  # of which a hybrid uses nothing
        assert HybridReward(rubric, rules)(["a", "b"], ["t", "t"]) == [25, 22.5]
        assert HybridReward(rubric, {"verifier": A})(["b"], ["t"]) == [22.5]
        assert HybridReward(rubric)(["b"], ["t"]) == [25]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": (1,)}, "weights is \\(1,\\); write two numbers"),
        ({"weights": (0, 0)}, "weights is"),
        ({"weights": (-1, 2)}, "weights is"),
        ({"scale": "papers"}, "scale is 'papers'; did you mean 'paper'?"),
        ({"rules": {"verifer": A}}, "rules: .*verifer"),
        ({"rules": {"tag": "next_state"}}, "rules: tag is 'next_state'; leave it out"),
        ({"rules": "x"}, "rules is 'x'; write a RuleReward, or its arguments"),
    ],
)
def test_invalid_settings(settings, said):
    with pytest.raises(UserError, match=said):
        HybridReward({"server": {"base_url": "http://localhost:1/v1", "model": "m"}}, **settings)


def test_the_rubric_keeps_the_papers_scale():
    server = {"base_url": "http://localhost:1/v1", "model": "m"}
    with pytest.raises(UserError, match="rubric: scale is 'unit'"):
        HybridReward({"server": server, "scale": "unit"})
    with pytest.raises(UserError, match="rubric: tag is 'x'"):
        HybridReward({"server": server, "tag": "x"})
