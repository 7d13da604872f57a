"""No file of the user's is lost: outputs are not sources nor each other, and only what we wrote is removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wm_plugin.cli import main
from wm_plugin.trajectories.outputs import atomic

ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}] * 2, "id": 1}


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROW)}\nbroken\n")
    os.symlink(path, tmp_path / "link.jsonl")
    os.link(path, tmp_path / "hard.jsonl")
    os.symlink(tmp_path, tmp_path / "folder")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "rows.jsonl", "--out", name]
        for name in (
            "rows.jsonl",
            "./rows.jsonl",
            "link.jsonl",
            "hard.jsonl",
            "folder/rows.jsonl",
            "../{tmp}/rows.jsonl",
        )
    ]
    + [
        ["convert", "rows.jsonl", "--out", "x.jsonl", "--rejects", "rows.jsonl"],
        ["convert", "rows.jsonl", "--out", "x.jsonl", "--rejects", "hard.jsonl"],
        ["convert", "rows.jsonl", "--out", "x.jsonl", "--rejects", "folder/x.jsonl"],
        ["convert", "rows.jsonl", "--out", "x.jsonl", "--rejects", "x.jsonl", "--workers", "2"],
        ["convert", ".", "--out", "hard.jsonl"],
        ["filter", "rows.jsonl", "--out", "link.jsonl"],
        ["expand", "rows.jsonl", "--out", "hard.jsonl"],
        ["inspect", "rows.jsonl", "--html", "link.jsonl"],
        ["build", "rows.jsonl", "--as", "imitation", "--host", "trl", "--out", "hard.jsonl"],
    ],
    ids=" ".join,
)
def test_an_output_is_no_source_and_no_other_output(capsys, source, tmp_path, arguments):
    before = source.read_bytes()
    assert main.main(["data", *(argument.replace("{tmp}", tmp_path.name) for argument in arguments)]) == 2
    assert "name another file" in capsys.readouterr().err
    assert source.read_bytes() == before
    assert (tmp_path / "link.jsonl").is_symlink()
    assert not (tmp_path / "x.jsonl").exists()


def test_a_folder_with_its_own_output(capsys, source):
    assert main.main(["data", "convert", ".", "--out", "x.jsonl"]) == 0
    assert main.main(["data", "convert", ".", "--out", "x.jsonl"]) == 2
    assert "--out: x.jsonl is the source x.jsonl" in capsys.readouterr().err


def test_only_our_own_rejects_are_removed(capsys, source):
    rejects = Path("x.rejects.jsonl")
    rejects.write_text("mine\n")
    assert main.main(["data", "convert", "rows.jsonl", "--out", "x.jsonl"]) == 2
    source.write_text(json.dumps(ROW))
    assert main.main(["data", "convert", "rows.jsonl", "--out", "y.jsonl", "--rejects", str(rejects)]) == 0
    assert rejects.read_text() == "mine\n"
    rejects.unlink()
    source.write_text(f"{json.dumps(ROW)}\nbroken\n")
    assert main.main(["data", "convert", "rows.jsonl", "--out", "x.jsonl"]) == 0
    assert rejects.exists()
    source.write_text(json.dumps(ROW))
    assert main.main(["data", "convert", "rows.jsonl", "--out", "x.jsonl"]) == 0
    assert not rejects.exists()


def test_a_convert_that_rejects_everything(capsys, source):
    source.write_text('{"messages": 5}\n' * 3)
    assert main.main(["data", "convert", "rows.jsonl", "--out", "x.jsonl", "--format", "openai"]) == 1
    assert "nothing was read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--out", f"{'x' * 300}.jsonl"], 2),
        (["--out", f"{'é' * 124}.jsonl"], 0),  # 254 bytes: the names of unfinished files are no longer
        (["--out", "x.jsonl", "--rejects", "/dev/full"], 2),
        (["--out", "x.jsonl", "--rejects", "."], 2),
        (["--out", "x\x00.jsonl"], 2),
        (["--out", "x.jsonl", "--rejects", f"{'x' * 300}.jsonl"], 2),
        (["--out", "x.jsonl", "--workers", "9" * 20], 2),
    ],
)
def test_odd_outputs_are_one_line(capsys, source, arguments, code):
    rejects = [] if "--rejects" in arguments else ["--rejects", "r.jsonl"]
    assert main.main(["data", "convert", "rows.jsonl", *arguments, *rejects]) == code
    assert len(capsys.readouterr().err.splitlines()) == (code != 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_standard_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "wm_plugin.cli.main", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "wm: No space left on device\n")


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


def test_modes_are_those_of_other_new_files(tmp_path):
    with atomic(tmp_path / "x") as unfinished:
        unfinished.touch()
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode
