"""The file of ours in verl's checkpoint folder."""

import json

import pytest

from wm_plugin.errors import UserError
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl import state

STATE = {
    "objective": state.describe(EchoConfig(0.05, tools={"a": 0.3})),
    "tools": ["a"],
    "max_turns": 3,
    "turn_budget": None,
    "control": None,
}
REQUIRED = [name for name in STATE if name != "control"]  # earlier releases wrote no control


def test_what_was_saved_is_loaded(tmp_path):
    assert state.load(str(tmp_path)) is None
    state.save(str(tmp_path), STATE)
    assert state.load(str(tmp_path)) == STATE | {"guard": None}  # as of a release that had none
    state.save(str(tmp_path), STATE | {"guard": {"config": {}}})
    assert state.load(str(tmp_path)) == STATE | {"guard": {"config": {}}}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10**5,
        b'{"max_turns": ' + b"9" * 9999 + b"}",
        json.dumps(STATE).encode()[:-9],
        *(json.dumps({key: value for key, value in STATE.items() if key != name}).encode() for name in REQUIRED),
        *(json.dumps(STATE | {name: "x"}).encode() for name in [*STATE, "guard"]),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, text):
    (tmp_path / state.FILE).write_bytes(text)
    with pytest.raises(UserError, match="wm_state.json: damaged; resume from another checkpoint"):
        state.load(str(tmp_path))
