"""No file of the user's is lost: outputs are not sources nor each other, and only what we wrote is removed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes import members
from wm_plugin.data.easy import SCORES
from wm_plugin.worlds.agents.collect import remove_shards

ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}] * 2, "id": 1}

SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m"]
CONVERT = ["data", "convert", "rows.jsonl"]
EASY = ["data", "easy", "rows.jsonl", *SERVED]
BEST = ["--judge", "exact", "--compare", "reference", "--prompts", "mcp", "--threshold", "1", *SERVED]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROW)}\nbroken\n")
    os.symlink(path, tmp_path / "link.jsonl")
    os.link(path, tmp_path / "hard.jsonl")
    os.symlink(tmp_path, tmp_path / "folder")
    return path


NAMES = ("rows.jsonl", "./rows.jsonl", "link.jsonl", "hard.jsonl", "folder/rows.jsonl", "../{tmp}/rows.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        *([*CONVERT, "--out", name] for name in NAMES),
        *([*CONVERT, "--out", "x.jsonl", "--rejects", name] for name in ("rows.jsonl", "hard.jsonl", "folder/x.jsonl")),
        [*CONVERT, "--out", "x.jsonl", "--rejects", "x.jsonl", "--workers", "2"],
        ["data", "convert", ".", "--out", "hard.jsonl"],
        ["data", "filter", "rows.jsonl", "--out", "link.jsonl"],
        ["data", "expand", "rows.jsonl", "--out", "hard.jsonl"],
        ["data", "inspect", "rows.jsonl", "--html", "link.jsonl"],
        ["data", "build", "rows.jsonl", "--as", "imitation", "--host", "trl", "--out", "hard.jsonl"],
        [*EASY, "--out", "hard.jsonl"],
        ["lab", "best", "rows.jsonl", *BEST, "--out", "hard.jsonl"],
        ["lab", "best", "x.jsonl", *BEST, "--judge-args", '{"prompt": "./rows.jsonl"}', "--out", "hard.jsonl"],
        ["lab", "best", "x.jsonl", *BEST, "--compare-args", '{"a": ["rows.jsonl"]}', "--out", "hard.jsonl"],
    ],
    ids=" ".join,
)
def test_an_output_is_no_source_and_no_other_output(wm, source, tmp_path, arguments):
    before = source.read_bytes()
    assert "name another file" in wm.error(*(argument.replace("{tmp}", tmp_path.name) for argument in arguments))
    assert source.read_bytes() == before
    assert (tmp_path / "link.jsonl").is_symlink()
    assert not (tmp_path / "x.jsonl").exists()


def test_a_folder_with_its_own_output(wm, source):
    wm.text("data", "convert", ".", "--out", "x.jsonl")
    assert "--out: x.jsonl is the source x.jsonl" in wm.error("data", "convert", ".", "--out", "x.jsonl")


def test_only_our_own_rejects_are_removed(wm, source):
    rejects = Path("x.rejects.jsonl")
    rejects.write_text("mine\n")
    wm.error(*CONVERT, "--out", "x.jsonl")
    source.write_text(json.dumps(ROW))
    wm.text(*CONVERT, "--out", "y.jsonl", "--rejects", rejects)
    assert rejects.read_text() == "mine\n"
    rejects.unlink()
    for text, left in ((f"{json.dumps(ROW)}\nbroken\n", True), (json.dumps(ROW), False)):
        source.write_text(text)
        wm.text(*CONVERT, "--out", "x.jsonl")
        assert rejects.exists() is left


def test_only_our_own_distances_are_written_over(wm, source):
    scores = Path("x.easy.jsonl")
    scores.write_text("mine\n")
    arguments = (*EASY, "--prompts", "no.yaml", "--out", "x.jsonl")
    assert "x.easy.jsonl: holds something else" in wm.error(*arguments)
    assert scores.read_text() == "mine\n"
    scores.write_text(json.dumps(dict.fromkeys(SCORES)))
    assert "no.yaml" in wm.error(*arguments)


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
def test_odd_outputs_are_one_line(wm, source, arguments, code):
    rejects = [] if "--rejects" in arguments else ["--rejects", "r.jsonl"]
    found, _, err = wm(*CONVERT, *arguments, *rejects)
    assert (found, len(err.splitlines())) == (code, code != 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_standard_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "wm_plugin", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "wm: No space left on device\n")


def test_names_of_devices_are_no_outputs(wm, source, tmp_path):
    """Where standard output goes to a file, the name of the device leads to it: its place would be taken in /dev itself."""
    code = "import sys; from wm_plugin.cli.main import main; sys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, "data", "inspect", "rows.jsonl", "--html"]
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"):
        assert "names of devices" in wm.error("data", "inspect", "rows.jsonl", "--html", name)
    links = [os.path.islink(f"/dev/{name}") for name in ("stdout", "fd")]
    with (tmp_path / "page.html").open("w") as file:
        done = subprocess.run([*arguments, "/dev/stdout"], stdout=file, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [os.path.islink(f"/dev/{name}") for name in ("stdout", "fd")] == links


def test_what_a_killed_convert_left_is_removed(wm, source):
    source.write_text(f"{json.dumps(ROW)}\n" * 200_000)
    arguments = ["data", "convert", "rows.jsonl", "--out", "x.jsonl", "--workers", "2"]
    before = sorted(os.listdir())
    command = [sys.executable, "-m", "wm_plugin", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(Path().glob(".wm-*.unfinished/*.jsonl")):  # a worker writes
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not members(process.pid)  # the workers end with it
    assert len(list(Path().glob(".wm-*.unfinished/*.jsonl"))) > 0
    source.write_text(json.dumps(ROW))
    wm.text(*arguments[:-2])
    assert sorted(os.listdir()) == sorted([*before, "x.jsonl"])


@pytest.mark.host  # the schemas of tools
def test_a_folder_of_ones_own_beside_a_rollout_stays(wm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["env", "rollout", "grid", "--policy", "random", "--count", "1", "--out"]
    wm.text(*arguments, "theirs.jsonl")
    shard = Path("theirs.jsonl").read_text()
    for name in ("notes.txt", "episodes-2024.jsonl", "episodes-00000.jsonl"):
        folder = Path(f"{name}.d")
        folder.mkdir()
        (folder / name).write_text(shard)
        Path("x.work").symlink_to(folder)
        assert "x.work: a link to another folder" in wm.error(*arguments, "x.jsonl")
        Path("x.work").unlink()
        folder.rename("x.work")
        for work in ([], ["--work", "x.work"]):
            line = wm.error(*arguments, "x.jsonl", *work)
            assert "x.work: there are files in it, but no manifest.json of ours" in line
        assert [path.read_text() for path in Path("x.work").iterdir()] == [shard]
        Path("x.work").rename(folder)
    assert not Path("x.jsonl").exists()
    Path("y.work").mkdir()  # as a run leaves it that was killed at once
    Path("y.work/.wm-0-x.unfinished").touch()
    wm.text(*arguments, "y.jsonl")
    assert os.listdir("y.work") == [".wm-0-x.unfinished"]


@pytest.mark.host
def test_a_rollout_removes_its_own_shards_only(tmp_path):
    for name in ("episodes-00000", "episodes-00001", "episodes-00002", "episodes-2024"):
        (tmp_path / f"{name}.jsonl").touch()
        (tmp_path / f"{name}.rejects.jsonl").touch()
    (tmp_path / "manifest.json").touch()
    remove_shards(tmp_path, rows=9, shard_size=8)
    kept = [path.name.partition(".")[0] for path in tmp_path.glob("*.jsonl")]
    assert sorted(kept) == ["episodes-00002", "episodes-00002", "episodes-2024", "episodes-2024"]
    assert not (tmp_path / "manifest.json").exists()


def test_an_output_in_a_folder_that_is_gone_is_one_line(wm, source, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for verb, flag, out in (("convert", "--out", "o.jsonl"), ("inspect", "--html", "o.html")):
        assert f"{out}: cannot be written" in wm.error("data", verb, source, flag, out)
    wm.text("data", "convert", source, "--out", tmp_path / "o.jsonl")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "", "--out", "o.jsonl"],
        ["convert", "rows.jsonl", "", "--out", "o.jsonl"],
        ["inspect", ""],
        ["filter", "", "--out", "o.jsonl"],
        ["expand", "", "--out", "o.jsonl"],
        ["build", "", "--as", "imitation", "--host", "trl", "--out", "o.jsonl"],
    ],
    ids=" ".join,
)
def test_an_empty_name_is_not_the_current_folder(wm, source, tmp_path, arguments):
    wm.error("data", *arguments)
    assert not (tmp_path / "o.jsonl").exists()
