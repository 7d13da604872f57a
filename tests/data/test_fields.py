import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from wm_plugin.data.fields import check, to_bytes
from wm_plugin.data.schema import Trajectory

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=2)


def record(required, **optional):
    return st.fixed_dictionaries(required, optional=optional)


CALL = record({"name": TEXT}, arguments=JSON, id=st.none() | TEXT)
ACTION = record({}, text=TEXT, calls=st.lists(CALL, max_size=2), thought=st.none() | TEXT)
OBSERVATION = record(
    {"kind": st.sampled_from(["tool", "user", "environment"]), "text": TEXT},
    tool=st.none() | TEXT,
    call=st.none() | st.integers(0, 3),
    error=st.booleans(),
    data=OBJECT,
)
TURN = record(
    {"action": ACTION}, observations=st.lists(OBSERVATION, max_size=2), actor=st.sampled_from(["agent", "user"])
)
CONTEXT = record({}, task=TEXT, action_space=st.lists(OBJECT, max_size=2), demonstrations=st.lists(TEXT, max_size=2))
SOURCE = st.fixed_dictionaries({"format": TEXT, "file": TEXT, "row": st.integers(0, 9)})
TRAJECTORY = record(
    {"turns": st.lists(TURN, max_size=3)},
    context=CONTEXT,
    success=st.none() | st.booleans(),
    reward=st.none() | st.floats(),
    source=st.none() | SOURCE,
    metadata=OBJECT,
)


@given(TRAJECTORY)
def test_fields_are_the_records(given_fields):
    fields, trajectory = check(given_fields), Trajectory.model_validate(given_fields)
    assert to_bytes(fields) == trajectory.to_bytes()
    assert list(fields) == list(Trajectory.model_fields)


def test_what_was_left_out_is_there():
    fields = check({"turns": [{"action": {"text": "go"}, "observations": [{"kind": "user", "text": "gone"}]}]})
    assert fields == Trajectory.model_validate(fields).model_dump()
    assert [*fields] == [*Trajectory.model_fields]


def test_defaults_are_not_shared():
    one, other = check({"turns": []}), check({"turns": []})
    one["context"]["task"] = "x"
    one["metadata"]["x"] = 1
    assert (other["context"]["task"], other["metadata"]) == ("", {})


@pytest.mark.parametrize(
    "fields",
    [
        5,
        None,
        {},
        {"turns": [], "more": 1},
        {"turns": [{}]},
        {"turns": [{"action": {"text": 5}}]},
        {"turns": [{"action": {}, "actor": "nobody"}]},
        {"turns": [{"action": {}, "observations": [{"kind": "none", "text": ""}]}]},
        {"turns": [], "context": {"action_space": ["x"]}},
        {"turns": [], "version": 0},
    ],
)
def test_what_does_not_fit_is_refused_alike(fields):
    with pytest.raises(ValidationError) as plain:
        check(fields)
    with pytest.raises(ValidationError) as record:
        Trajectory.model_validate(fields)
    assert [error["loc"] for error in plain.value.errors()] == [error["loc"] for error in record.value.errors()]


@pytest.mark.parametrize("reward", [math.inf, -math.inf])
@pytest.mark.parametrize("said", ["\ud83d", 2**70])
def test_what_the_fast_writer_does_not_know(reward, said):
    fields = {"turns": [{"action": {"calls": [{"name": "f", "arguments": {"x": said}}]}}], "reward": reward}
    assert to_bytes(check(fields)) == Trajectory.model_validate(fields).to_bytes()
    assert "Infinity" in json.loads(to_bytes(check(fields)))["reward"]
