"""Ordinary rows with something missing go through every step that reads trajectories."""

from typing import Any

import pytest

from wm_plugin.cli import main
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn

GOOD = Turn(
    action=Action(text="go", calls=(Call(name="f"),)),
    observations=(Observation(kind="tool", text="x", tool="f", call=0),),
)
EMPTY = Turn(action=Action(), observations=(Observation(kind="environment", text="x"),))


def answer(call: int, *calls: str) -> Turn:
    action = Action(text="go", calls=tuple(Call(name=name) for name in calls))
    return Turn(action=action, observations=(Observation(kind="tool", text="x", tool="f", call=call),))


ROWS: dict[str, dict[str, Any]] = {
    "all actions are empty": {"turns": (EMPTY, EMPTY)},
    "no turns": {"turns": ()},
    "a result of call -1": {"turns": (answer(-1, "f"), GOOD)},
    "a result of call -1, without calls": {"turns": (answer(-1), GOOD)},
    "a result of a call that is not there": {"turns": (answer(7, "f"), GOOD)},
    "a function that is a string": {"turns": (GOOD, GOOD), "context": Context(action_space=({"function": "f"},))},
    "a name that is a list": {"turns": (GOOD, GOOD), "context": Context(action_space=({"name": ["f"]}, {}))},
    "half a surrogate pair in a tool": {
        "turns": (GOOD, GOOD),
        "context": Context(action_space=({"name": "f", "description": "\ud800"},)),
    },
    "only a user": {"turns": (Turn(action=Action(text="hi"), actor="user"),)},
}
STEPS = (
    ["filter"],
    ["filter", "--mask-values", "--profile"],
    ["expand"],
    ["inspect"],
    *(["build", "--host", "trl", "--as", kind] for kind in ("imitation", "rft")),
    *(["build", "--host", "trl", "--as", kind, "--prompts", "rwml"] for kind in ("rwml", "rwml-sft")),
    ["build", "--host", "trl", "--as", "word2world", "--prompts", "word2world"],
    *(["build", "--host", "trl", "--as", kind, "--prompts", "mcp"] for kind in ("agentworld", "agentworld-sft", "cpt")),
)


@pytest.mark.parametrize("step", STEPS, ids=" ".join)
def test_odd_rows_go_through_every_step(capsys, tmp_path, step):
    source = tmp_path / "x.jsonl"
    rows = (*(Trajectory(success=True, **row) for row in ROWS.values()), Trajectory(success=True, turns=(GOOD, GOOD)))
    source.write_bytes(b"".join(trajectory.to_bytes() + b"\n" for trajectory in rows))
    out = [] if step == ["inspect"] else ["--out", str(tmp_path / "out.jsonl")]
    assert main.main(["data", step[0], str(source), *step[1:], *out]) == 0, capsys.readouterr().err
