"""Files that are written get their names when they are complete; only what a run of ours wrote is removed."""

import os
import tempfile
from pathlib import Path

import pytest

from wm_plugin.data import outputs
from wm_plugin.data.outputs import atomic, work_folder
from wm_plugin.errors import UserError


def test_unfinished_files_of_a_killed_run_are_removed(tmp_path):
    out = tmp_path / "x.jsonl"
    with atomic(out) as running:
        left = running.with_name(f"{running.name[:21]}killed.unfinished")
        left.write_text("half")
        other = running.with_name("mine.unfinished")
        other.write_text("mine")
        link = running.with_name(f"{running.name[:21]}link.unfinished")
        link.symlink_to(other)
        with atomic(out) as second:
            assert not left.exists()
            assert running.exists()
            assert link.is_symlink()
            second.write_text("second")
        running.write_text("first")
    assert (out.read_text(), other.read_text()) == ("first", "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, other.name, link.name])


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
    with atomic(tmp_path / "x") as unfinished:
        unfinished.touch()
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_only_unfinished_files_of_ours_are_removed(tmp_path):
    out = tmp_path / "x.jsonl"
    with atomic(out) as running:
        prefix = running.name[:21]
    for kind, make in {"file": Path.touch, "folder": Path.mkdir}.items():
        make(tmp_path / f"{prefix}{kind}.unfinished")
        make(tmp_path / f"{prefix}{kind}.mine")
    (tmp_path / f"{prefix}folder.unfinished" / "0.jsonl").write_text("half")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("mine")
    (tmp_path / f"{prefix}link.unfinished").symlink_to("mine")
    with work_folder(out) as running:
        names = sorted(path.name for path in tmp_path.iterdir())
        with atomic(out):
            assert running.is_dir()
    kept = [f"{prefix}{name}" for name in ("file.mine", "folder.mine", "link.unfinished")]
    assert names == sorted([*kept, "mine", running.name, out.name])
    assert (tmp_path / "mine" / "x").exists()
