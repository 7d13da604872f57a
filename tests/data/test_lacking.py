"""Rollouts whose agent calls tools without a schema."""

from wm_plugin.data.host_dumps import Lacking
from wm_plugin.data.schema import Action, Call, Context, Trajectory, Turn


def test_a_tool_that_is_called_and_not_among_the_schemas_is_named() -> None:
    turns = [
        Turn(actor="agent", action=Action(calls=(Call(name=name, arguments={}),)), observations=())
        for name in ("look", "jump")
    ]
    lacking = Lacking()
    for schemas in (({"name": "look"},), ({"type": "function", "function": {"name": "jump"}}, {"name": "look"}), ()):
        list(lacking([Trajectory(context=Context(action_space=schemas), turns=tuple(turns))]))
    assert (lacking.count, lacking.strange) == (1, {"jump": 1})
    assert lacking.notes[1:] == ["1 of these rollouts call 'jump', which is not among their tool schemas"]
