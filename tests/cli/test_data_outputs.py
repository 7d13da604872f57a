"""No file of the user's is lost: outputs are not sources nor each other, and only what we wrote is removed."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from support.processes import members
from wm_plugin.cli import main
from wm_plugin.data import outputs
from wm_plugin.data.easy import SCORES
from wm_plugin.data.outputs import atomic, work_folder
from wm_plugin.errors import UserError
from wm_plugin.worlds.agents.collect import remove_shards

ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}] * 2, "id": 1}

SERVED = ["--server", "http://localhost:1/v1", "--server-model", "m"]
BEST = ["--judge", "exact", "--compare", "reference", "--prompts", "mcp", "--threshold", "1"]


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
        ["easy", "rows.jsonl", *SERVED, "--out", "hard.jsonl"],
        ["best", "rows.jsonl", *SERVED, *BEST, "--out", "hard.jsonl"],
        ["best", "x.jsonl", *SERVED, *BEST, "--judge-args", '{"prompt": "./rows.jsonl"}', "--out", "hard.jsonl"],
        ["best", "x.jsonl", *SERVED, *BEST, "--compare-args", '{"a": ["rows.jsonl"]}', "--out", "hard.jsonl"],
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


def test_only_our_own_distances_are_written_over(capsys, source):
    scores = Path("x.easy.jsonl")
    scores.write_text("mine\n")
    arguments = ["data", "easy", "rows.jsonl", *SERVED, "--prompts", "no.yaml", "--out", "x.jsonl"]
    assert main.main(arguments) == 2
    assert "x.easy.jsonl: holds something else" in capsys.readouterr().err
    assert scores.read_text() == "mine\n"
    scores.write_text(json.dumps(dict.fromkeys(SCORES)))
    assert main.main(arguments) == 2
    assert "no.yaml" in capsys.readouterr().err


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


def test_names_of_devices_are_no_outputs(capsys, source, tmp_path):
    """Where standard output goes to a file, the name of the device leads to it: its place would be taken in /dev itself."""
    code = "import sys; from wm_plugin.cli.main import main; sys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, "data", "inspect", "rows.jsonl", "--html"]
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"):
        assert main.main(["data", "inspect", "rows.jsonl", "--html", name]) == 2
        assert "names of devices" in capsys.readouterr().err
    links = [os.path.islink(f"/dev/{name}") for name in ("stdout", "fd")]
    with (tmp_path / "page.html").open("w") as file:
        done = subprocess.run([*arguments, "/dev/stdout"], stdout=file, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [os.path.islink(f"/dev/{name}") for name in ("stdout", "fd")] == links


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


def test_what_a_killed_convert_left_is_removed(capsys, source):
    source.write_text(f"{json.dumps(ROW)}\n" * 200_000)
    arguments = ["data", "convert", "rows.jsonl", "--out", "x.jsonl", "--workers", "2"]
    before = sorted(os.listdir())
    command = [sys.executable, "-m", "wm_plugin.cli.main", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(Path().glob(".wm-*.unfinished/*")):  # a worker writes
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not members(process.pid)  # the workers end with it
    assert len(list(Path().glob(".wm-*.unfinished/*"))) > 0
    source.write_text(json.dumps(ROW))
    assert main.main(arguments[:-2]) == 0
    assert sorted(os.listdir()) == sorted([*before, "x.jsonl"])


@pytest.mark.host  # the schemas of tools
def test_a_folder_of_ones_own_beside_a_rollout_stays(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["env", "rollout", "grid", "--policy", "random", "--count", "1", "--out"]
    assert main.main([*arguments, "theirs.jsonl"]) == 0
    shard = Path("theirs.jsonl").read_text()
    for name in ("notes.txt", "episodes-2024.jsonl", "episodes-00000.jsonl"):
        folder = Path(f"{name}.d")
        folder.mkdir()
        (folder / name).write_text(shard)
        Path("x.work").symlink_to(folder)
        assert main.main([*arguments, "x.jsonl"]) == 2
        assert "x.work: a link to another folder" in capsys.readouterr().err
        Path("x.work").unlink()
        folder.rename("x.work")
        for work in ([], ["--work", "x.work"]):
            assert main.main([*arguments, "x.jsonl", *work]) == 2
            assert "x.work: there are files in it, but no manifest.json of ours" in capsys.readouterr().err
        assert [path.read_text() for path in Path("x.work").iterdir()] == [shard]
        Path("x.work").rename(folder)
    assert not Path("x.jsonl").exists()
    Path("y.work").mkdir()  # as a run leaves it that was killed at once
    Path("y.work/.wm-0-x.unfinished").touch()
    assert main.main([*arguments, "y.jsonl"]) == 0
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


def test_an_output_in_a_folder_that_is_gone_is_one_line(capsys, source, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for arguments in (["convert", "--out", "o.jsonl"], ["inspect", "--html", "o.html"]):
        assert main.main(["data", arguments[0], str(source), *arguments[1:]]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith(f"wm: {arguments[2]}: cannot be written")
    assert main.main(["data", "convert", str(source), "--out", str(tmp_path / "o.jsonl")]) == 0
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
def test_an_empty_name_is_not_the_current_folder(capsys, source, tmp_path, arguments):
    assert main.main(["data", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()
