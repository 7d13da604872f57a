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
    assert [path.name for path in tmp_path.iterdir()] == [state.FILE]  # whole, and nothing beside it
    assert state.describe(EchoConfig(select=max))["select"] == "max"
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


def test_the_last_whole_checkpoint_takes_the_place_of_a_damaged_one(tmp_path, caplog):
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    assert state.last_whole(str(tmp_path)) is None
    for step in (1, 2, 9, 10, 12):  # 12 is unfinished, and verl has removed the actor of 9
        state.save(str(tmp_path / f"global_step_{step}"), STATE)
        if step != 12:
            (tmp_path / f"global_step_{step}" / "data.pt").write_bytes(b"")
        if step != 9:
            (tmp_path / f"global_step_{step}" / "actor").mkdir()
    tracker.write_text("10")
    assert state.last_whole(str(tmp_path)) is None
    assert not caplog.text
    (tmp_path / "global_step_10" / state.FILE).write_text("{")
    assert state.last_whole(str(tmp_path)) == str(tmp_path / "global_step_2")
    assert "global_step_10 is left out: its wm_state.json is damaged" in caplog.text
    tracker.write_text("")
    (tmp_path / "global_step_12" / "data.pt").write_bytes(b"")
    assert state.last_whole(str(tmp_path)) == str(tmp_path / "global_step_12")
    for step in (1, 2, 9, 12):
        (tmp_path / f"global_step_{step}" / state.FILE).write_text("[]")
    with pytest.raises(UserError, match=f"{tracker}: damaged; write the number"):
        state.last_whole(str(tmp_path))
