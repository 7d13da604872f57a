"""Invalid and ineffective actions by hand."""

import pytest

from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.actions import add, quality
from wm_plugin.lab.evaluation.measures import Sums

TOOLS = (
    {"type": "function", "function": {"name": "go", "parameters": {"properties": {"to": {}}, "required": ["to"]}}},
    {"name": "act", "parameters": {"properties": {"command": {}}}},
    {"name": "free", "parameters": {"properties": {"a": {}}, "additionalProperties": True}},
)


def call(name, text, arguments=None, **more):
    """A turn with one call and its answer."""
    answers = () if text is None else (Observation(kind="tool", text=text, tool=name, call=0, **more),)
    return Turn(action=Action(calls=(Call(name=name, arguments=arguments),)), observations=answers)


def words(text, *answers, kind="environment"):
    return Turn(action=Action(text=text), observations=[Observation(kind=kind, text=answer) for answer in answers])


def count(*turns, tools=TOOLS, metadata=None, **settings):
    made = Trajectory(turns=turns, context=Context(action_space=tools), metadata=metadata or {})
    counts = quality(made, **settings)
    kinds = {kind: number for kind, number in counts.kinds.items() if number}
    return (counts.actions, counts.invalid, counts.ineffective, counts.calls, kinds)


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (call("go", "You go.", {"to": "A"}), ""),
        (call("fly", "You fly."), "unknown tool"),
        (call("go", "You go."), "arguments"),
        (call("go", "You go.", {"to": "A", "by": "car"}), "arguments"),
        (call("go", "You go.", '{"to": "A"'), "arguments"),
        (call("go", "You go.", ["A"]), "arguments"),
        (call("free", "Free.", {"b": 1}), ""),
        (call("go", "No such place.", {"to": "A"}, error=True), "error"),
        (call("go", "Nothing happens.", {"to": "A"}), "refused"),
        (call("go", "A wall.", {"to": "A"}, data={"actions": 1, "invalid": 1}), "refused"),
        (call("go", None, {"to": "A"}), ""),
    ],
)
def test_kinds_of_invalid_calls(turn, kind):
    assert count(turn) == (1, bool(kind), 0, 1, {kind: 1} if kind else {})


def test_without_schemas_no_tool_is_unknown():
    assert count(call("fly", "You fly.", {"x": 1}), tools=()) == (1, 0, 0, 1, {})
    assert count(call("fly", "You fly."), tools=({"name": "fly", "parameters": 3},)) == (1, 0, 0, 1, {})


def test_several_actions_in_a_call_count_as_the_world_counts_them():
    turn = call("act", "Moved.", {"command": "L;L;X"}, data={"actions": 3, "invalid": 1})
    assert count(turn) == (3, 1, 0, 1, {"refused": 1})
    assert count(call("act", "Invalid: 1 of 2\nMoved.", {"command": "LX"})) == (1, 0.5, 0, 1, {"refused": 1})


def test_the_same_action_with_the_same_answer_is_ineffective():
    go = call("go", "You are there.", {"to": "A"})
    turns = [go, go, call("go", "You are back.", {"to": "A"}), call("go", "You are there.", {"to": "B"}), go]
    assert count(*turns) == (5, 0, 2, 5, {})
    assert count(words("open door", "Nothing happens."), words("open door", "Nothing happens.")) == (2, 2, 0, 0, {})
    assert count(words("look", "A room."), words("look", "A room.")) == (2, 0, 1, 0, {})
    assert count(call("act", None), call("act", None)) == (2, 0, 0, 2, {})


def test_commands_that_only_look_are_ineffective_where_they_are_named():
    turns = [
        words("<think>I look around</think> Look at door", "A door."),
        words("take key", "Taken."),
        call("act", "A box.", {"command": "examine box"}),
        call("act", "Nothing happens.", {"command": "examine air"}),
        call("examine", "A box.", {}),
    ]
    assert count(*turns, tools=(), passive={"look", "examine"}) == (5, 1, 3, 3, {"refused": 1})
    assert count(*turns, tools=()) == (5, 1, 0, 3, {"refused": 1})


def test_the_world_s_own_count_of_effective_actions_comes_first():
    go = call("go", "You are there.", {"to": "A"}, data={"actions": 1, "invalid": 0})
    figures = {"figures": {"actions": 4, "effective": 1, "invalid": 1}}
    wrong = call("go", "A wall.", {"to": "B"}, data={"actions": 1, "invalid": 1})
    assert count(go, go, go, wrong, metadata=figures) == (4, 1, 2, 4, {"refused": 1})
    assert count(go, metadata={"figures": {"actions": 1, "effective": "x", "invalid": 0}}) == (1, 0, 0, 1, {})
    assert (
        count(go, metadata={"figures": {"actions": 9, "effective": 0, "invalid": 0}})[2] == 1
    )  # never more than there are
    assert count(go, go, metadata=figures, passive={"x"})[2] == 1


def test_what_is_no_action():
    user = Turn(action=Action(text="hi"), observations=(Observation(kind="environment", text="x"),), actor="user")
    assert count(words("Hello", "Hi", kind="user"), words("the end"), user) == (0, 0, 0, 0, {})


def test_more_patterns_of_invalid_actions():
    turn = words("go", "You cannot do this")
    assert count(turn)[1] == 0
    assert count(turn, invalid=["^you cannot"])[1] == 1
    with pytest.raises(UserError, match="is no regular expression"):
        count(turn, invalid=["("])


def test_the_measures_are_ratios_of_sums():
    sums = Sums()
    for task, turns in {
        "a": [call("fly", "x"), call("go", "y", {"to": "A"}), call("go", "y", {"to": "A"})],
        "b": [call("go", "y", {"to": "A"})],
    }.items():
        add(sums, task, quality(Trajectory(turns=turns, context=Context(action_space=TOOLS))))
    values = {(one.name, one.group): (one.value, one.count) for one in sums.measures()}
    assert values["invalid_actions", ""] == (1 / 4, 4)
    assert values["ineffective_actions", ""] == (1 / 4, 4)
    assert values["invalid_or_ineffective_actions", ""] == (2 / 4, 4)
    assert values["invalid_calls", "unknown tool"] == (1 / 4, 4)
    assert values["invalid_calls", "error"] == (0.0, 4)


@pytest.mark.parametrize("size", [1e308, 1e300, 1e7, -1, "3", float("nan")])
def test_a_count_that_no_world_has_is_none(size):
    turn = call("act", "Moved.", {"command": "L"}, data={"actions": size, "invalid": 0})
    assert count(turn, turn)[:2] == (2, 0)
