"""Files that are written get their names when they are complete; only what a run of ours wrote is removed."""

import os
import tempfile
from pathlib import Path

import pytest

from wm_plugin.data import outputs
from wm_plugin.data.outputs import atomic, atomic_folder, work_folder
from wm_plugin.errors import UserError


def test_only_folders_that_a_killed_run_left_are_removed(tmp_path):
    out = tmp_path / "x.jsonl"
    with work_folder(out) as folder:
        prefix = folder.name[:21]
    for name in (f"{prefix}left.unfinished", f"{prefix}left.mine", "mine.unfinished", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("half")
    (tmp_path / f"{prefix}link.unfinished").symlink_to("mine")
    (tmp_path / f"{prefix}file.unfinished").touch()
    kept = {path.name for path in tmp_path.iterdir()} - {f"{prefix}left.unfinished"}
    with atomic(out) as running:
        assert {path.name for path in tmp_path.iterdir()} == {*kept, running.parent.name}
        with atomic(out) as second:  # another run: it leaves the first one's folder alone
            second.write_text("second")
        assert out.read_text() == "second"
        running.write_text("first")
    assert out.read_text() == "first"
    assert (tmp_path / "mine" / "x").exists()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, out.name}


@pytest.fixture
def somebody():
    """A folder for anybody, and a user who is not root."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name), user
        os.seteuid(user)


def test_outputs_that_may_not_be_written(somebody):
    folder, user = somebody
    for name in ("protected", "closed"):
        (folder / name).mkdir()
        (folder / name / "x.jsonl").write_text("mine")
        (folder / name).chmod(0o777)
    (folder / "protected" / "x.jsonl").chmod(0o444)
    (folder / "closed").chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    for name in ("protected/x.jsonl", "closed/x.jsonl", "closed/y.jsonl"):
        with pytest.raises(UserError, match="may (not )?be written"):
            outputs.check_out(folder / name)
    outputs.check_out(folder / "protected/y.jsonl")


def test_modes_are_those_of_other_new_files(tmp_path):
    with atomic(tmp_path / "x"), atomic_folder(tmp_path / "folder"):
        pass
    (tmp_path / "y").touch()
    (tmp_path / "other").mkdir()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "other").stat().st_mode
