"""Pairs: who comes first, who won, and what needs no judge."""

import pytest

pytest.importorskip("aiohttp")

from support.openai_server import OpenAIServer, block, judge_at
from wm_plugin.errors import UserError
from wm_plugin.rewards.comparison import ReferenceReward, TuringReward


def says(key, value):
    return f'<final_evaluation>{{"{key}": "{value}"}}</final_evaluation>'


def finds(key, text, other=False):
    """A judge that names the block that holds a text, or the other one."""
    return lambda body: says(key, "first" if (block(body, "first") == text) is not other else "second")


MANY = [f"p{n}" for n in range(100)]


@pytest.mark.parametrize("other", [False, True])
def test_the_closer_one_wins_wherever_it_stands(other):
    with OpenAIServer(finds("closer", "reference", other)) as server:
        scores = ReferenceReward(judge_at(server))(MANY, ["t"] * 100, reference=["reference"] * 100)
    assert scores == [float(other)] * 100
    assert block(server.bodies[0], "observed") == "t"


@pytest.mark.parametrize(
    ("reward", "key", "columns"), [(ReferenceReward, "closer", {"reference": ["r"] * 100}), (TuringReward, "real", {})]
)
def test_the_order_is_random_but_fixed(reward, key, columns):
    with OpenAIServer(lambda body: says(key, "first")) as server:
        first, again, other = (reward(judge_at(server), seed=seed)(MANY, ["t"] * 100, **columns) for seed in (0, 0, 1))
    assert first == again != other
    assert 35 < sum(first) < 65  # a judge that likes first places tells nothing


def test_a_turing_test():
    with OpenAIServer(finds("real", "t")) as server:  # it finds the real one
        assert TuringReward(judge_at(server))(MANY[:50], ["t"] * 50) == [0.0] * 50
        assert {frozenset((block(body, "first"), block(body, "second"))) for body in server.bodies} == {
            frozenset((text, "t")) for text in MANY[:50]
        }
    with OpenAIServer(finds("real", "p")) as server:  # it is taken in
        assert TuringReward(judge_at(server))(["p"], ["t"]) == [1.0]


@pytest.mark.parametrize(
    ("value", "rewards"),
    [("tie", {0.5}), ("First", {0.0, 1.0}), (" second. ", {0.0, 1.0}), ("**first**", {0.0, 1.0})]
    + [(value, {-1.0}) for value in ("A", "both", "", "first and second", "1")],
)
def test_verdicts(value, rewards):
    with OpenAIServer(lambda body: says("closer", value)) as server:
        reward = ReferenceReward(judge_at(server), no_verdict=-1.0)
        assert set(reward(["p"], ["t"], reference=["r"])) <= rewards
    assert reward.figures["failures/no_verdict"] == (rewards == {-1.0})


def test_a_turing_test_has_no_tie():
    with OpenAIServer(lambda body: says("real", "tie")) as server:
        assert TuringReward(judge_at(server), no_verdict=-1.0)(["p"], ["t"]) == [-1.0]


def test_what_needs_no_judge():
    with OpenAIServer(lambda body: says("real", "first")) as server:
        assert TuringReward(judge_at(server))(["t\n", None], ["t", "t"]) == [1.0, 0.0]
        assert ReferenceReward(judge_at(server))(["p", "p", None], ["t"] * 3, reference=["p ", None, "p"]) == [
            0.5,
            1.0,
            0.0,
        ]
        assert server.bodies == []
        TuringReward(judge_at(server), ask_equal=True)(["t"], ["t"])
        assert len(server.bodies) == 1


def test_a_column_is_missing():
    with pytest.raises(UserError, match="ReferenceReward needs the column 'reference'"):
        ReferenceReward({"base_url": "http://localhost/v1", "model": "judge"})(["p"], ["t"])
