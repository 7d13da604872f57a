"""An agent's actions as answers that are kept."""

import pytest

from wm_plugin.client.answers import Answer
from wm_plugin.data.schema import Action, Call, Context, Trajectory
from wm_plugin.runtime.workers import Lost
from wm_plugin.worlds.agents.acting import Situation, _answer, action_of_answer


@pytest.mark.parametrize(
    "action",
    [
        Action(),
        Action(text="\ud83d", thought="Hm."),
        Action(calls=(Call(name="f", arguments='{"broken'), Call(name="g", arguments={"a": [1, None, 1 << 70, "é"]}))),
    ],
)
def test_an_action_is_kept_as_it_was(action):
    answer = _answer(action)
    assert action_of_answer(answer) == action
    assert answer.trouble == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text": 1}', '{"more": ""}', "[" * 9999])
def test_an_action_out_of_bounds_is_lost(text):
    lost = action_of_answer(Answer(text))
    assert isinstance(lost, Lost)
    assert lost.kind == "malformed"


def test_an_action_that_did_not_come_is_lost():
    assert action_of_answer(Answer("", failure="timeout")).kind == "timeout"


def test_other_tools_are_another_question_and_the_hidden_state_is_none_of_it():
    contexts = [
        Context(initial_state="A hall.", action_space=({"name": tool},), world_context="a secret") for tool in "fgf"
    ]
    first, other, same = (Situation(Trajectory(turns=(), context=context)) for context in contexts)
    assert first == same != other
    assert "secret" not in str(list(first))
