"""Trajectories as ATIF documents, which are read back the same, and as rows of messages, which `datasets` reads."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.formats import DOCUMENTS
from wm_plugin.data import Trajectory
from wm_plugin.data.exports import atif_document, lost_in_messages, messages_row
from wm_plugin.data.readers import FORMATS, atif, read_rows
from wm_plugin.data.schema import Action, Call, Context, Observation, Source, Turn

words = st.sampled_from(["", "a", "<think>hm</think>go", "é\n", "[1]", '{"a": 1}', "x</think>"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(words, values, max_size=2)
calls = st.builds(
    Call, name=st.sampled_from(["f", "g", ""]), arguments=values, id=st.sampled_from([None, "a", "b", ""])
)
observations = st.builds(
    Observation,
    kind=st.sampled_from(["tool", "user", "environment"]),
    text=words,
    tool=st.sampled_from([None, "f", "h"]),
    call=st.sampled_from([None, 0, 1, 2]),
    error=st.booleans(),
    data=objects,
)
turns = st.builds(
    Turn,
    action=st.builds(Action, text=words, calls=st.lists(calls, max_size=3).map(tuple), thought=st.none() | words),
    observations=st.lists(observations, max_size=3).map(tuple),
    actor=st.sampled_from(["agent", "agent", "user"]),
    train=st.booleans(),
)
trajectories = st.builds(
    Trajectory,
    turns=st.lists(turns, max_size=4).map(tuple),
    context=st.builds(
        Context,
        task=words,
        action_space=st.lists(objects, max_size=1).map(tuple),
        initial_state=words,
        demonstrations=st.lists(words, max_size=1).map(tuple),
        world_context=words,
    ),
    task_id=words,
    success=st.none() | st.booleans(),
    reward=st.none() | st.sampled_from([0.5, 1.0, float("inf")]),
    source=st.none() | st.just(Source(format="x", file="y", row=3, id="z")),
    metadata=objects,
)


def read_back(document: Any) -> Trajectory:
    (fields,) = atif.convert(json.loads(json.dumps(document)), Source(format="atif", file="", row=0))
    return Trajectory.model_validate(fields)


def calls_of(turn: Turn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in turn.action.calls]


@settings(max_examples=80, deadline=None)
@given(trajectories)
@example(
    Trajectory(turns=(Turn(action=Action()), Turn(action=Action(), actor="user")), context=Context(initial_state="a"))
)
def test_a_document_of_atif_is_read_back_as_the_same_trajectory(trajectory):
    document = atif_document(trajectory)
    assert read_back(document) == trajectory
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:  # what Harbor's models ask for
        ids = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results = step.get("observation", {}).get("results", ())
        assert {result["source_call_id"] for result in results if "source_call_id" in result} <= ids
        assert step["source"] == "agent" or step.keys() == {"step_id", "source", "message"}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_goes_through_atif_and_messages(name, tmp_path):
    path = tmp_path / "12_x.json"
    path.write_text(json.dumps(DOCUMENTS[name]))
    (trajectory,) = read_rows(path, name)
    assert read_back(atif_document(trajectory)) == trajectory
    extra = atif_document(trajectory)["extra"]["wm_plugin"]
    assert "turns" not in extra  # the steps hold them
    path.write_text(json.dumps(messages_row(trajectory)))
    (again,) = read_rows(path, "openai")
    assert [calls_of(turn) for turn in again.turns] == [calls_of(turn) for turn in trajectory.turns]
    assert [one.text for _, _, one in again.observed()] == [one.text for _, _, one in trajectory.observed()]
    assert again.context.action_space == trajectory.context.action_space
    assert again.reward == trajectory.reward


def test_messages_lose_what_is_not_to_be_trained_on():
    turns = [Turn(action=Action(text="a"), train=train) for train in (True, False)]
    assert list(lost_in_messages(Trajectory(turns=(turns[0],)))) == []
    assert list(lost_in_messages(Trajectory(turns=tuple(turns)))) == ["marks of what is not to be trained on"]
