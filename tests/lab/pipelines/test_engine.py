"""Which steps run: after a kill, a changed input, a changed output, a changed command; by real commands."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from wm_plugin.cli.main import main

# counts how often it runs, and takes as long as the file `slow` of the folder says
WORK = """
import json, pathlib, sys, time
out, *words = sys.argv[1:]
if "fail" in words: sys.exit(3)
with open("calls", "a") as calls: calls.write(out + "\\n")
partial = pathlib.Path(out + ".part")
with partial.open("a") as file: file.write("begun\\n")
slow = pathlib.Path("slow")
while slow.exists() and slow.read_text().strip() in out: time.sleep(0.02)
texts = [pathlib.Path(word).read_text() if pathlib.Path(word).is_file() else word for word in words]
pathlib.Path(out).write_text(json.dumps(texts))
partial.unlink()
"""
FILE = """
about: three stages
work: results
settings: {seeds: [0, 1], extra: x}
for: {arm: [plain, more], seed: "{seeds}"}
cases:
  arm: {plain: {flags: []}, more: {flags: ["{extra}", y]}}
steps:
  data:
    needs: source.txt
    run: python -S work.py {work}/data.txt source.txt
    makes: "{work}/data.txt"
  train:
    for: [arm, seed]
    needs: "@data"
    run: python -S work.py {work}/{arm}_s{seed}.txt {@data} {seed} {flags}
    makes: "{work}/{arm}_s{seed}.txt"
  table:
    show: true
    run:
      - python -S work.py {work}/table.json {@train}
      - cat {work}/table.json
    makes: "{work}/table.json"
"""
ALL = ["data", "train:plain:0", "train:plain:1", "train:more:0", "train:more:1", "table"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("work.py").write_text(WORK)
    Path("source.txt").write_text("first")
    Path("p.yaml").write_text(FILE)
    return tmp_path


def run(capsys, *flags, code=0):
    """The states of the steps by name."""
    assert main(["lab", "pipeline", "p.yaml", "--json", *flags]) == code
    return {step["name"]: step["state"] for step in json.loads(capsys.readouterr().out)["steps"]}


def ran(states):
    return [name for name, state in states.items() if state == "ran"]


def test_all_steps_run_once_in_their_order(folder, capsys):
    assert ran(run(capsys)) == ALL
    calls = Path("calls").read_text().split()
    assert (calls[0], calls[-1], len(calls)) == ("results/data.txt", "results/table.json", 6)
    assert json.loads(Path("results/table.json").read_text())[2] == json.dumps([json.dumps(["first"]), "0", "x", "y"])
    assert ran(run(capsys)) == []
    assert main(["lab", "pipeline", "p.yaml"]) == 0  # which shows the last step's output once more
    assert Path("results/table.json").read_text() in capsys.readouterr().out


def test_a_changed_input_runs_what_depends_on_it(folder, capsys):
    run(capsys)
    Path("source.txt").write_text("other")
    assert ran(run(capsys)) == ALL
    assert "other" in Path("results/table.json").read_text()
    os.utime("source.txt", (1, 1))  # another time, and the same content
    assert ran(run(capsys)) == []


def test_a_changed_command_runs_its_arm_alone(folder, capsys):
    run(capsys)
    assert ran(run(capsys, "--set", "extra=z")) == ["train:more:0", "train:more:1", "table"]


@pytest.mark.parametrize("change", ["by hand", "gone"])
def test_an_output_that_is_not_as_it_was_is_made_again(folder, capsys, change):
    run(capsys)
    before = Path("results/table.json").read_text()
    if change == "gone":
        Path("results/plain_s1.txt").unlink()
    else:
        Path("results/plain_s1.txt").write_text("by hand")
    assert ran(run(capsys)) == ["train:plain:1"]  # it is the same again, so that the table stays
    assert Path("results/table.json").read_text() == before
    kept = [path.read_text() for path in Path("results/.pipeline/stale").glob("*/plain_s1.txt")]
    assert kept == (["by hand"] if change == "by hand" else [])


def test_what_data_commands_keep_goes_with_their_output_unless_they_go_on(folder, capsys):
    text = """
    settings: {n: 1}
    steps:
      rows:
        run:
          - mkdir -p {work}/rows.work
          - cp source.txt {work}/rows.work/{n}
          - cp source.txt {work}/rows.jsonl
          - test ! -e stop
        makes: "{work}/rows.jsonl"
    """
    Path("p.yaml").write_text(textwrap.dedent(text))
    Path("stop").touch()
    run(capsys, code=1)
    Path("stop").unlink()
    run(capsys)
    assert [path.name for path in Path("runs/p/rows.work").iterdir()] == ["1"]  # it went on
    assert not Path("runs/p/.pipeline/stale").exists()
    run(capsys, "--set", "n=2")
    assert [path.name for path in Path("runs/p/rows.work").iterdir()] == ["2"]
    assert sorted(path.name for path in Path("runs/p/.pipeline/stale").glob("*/*")) == ["rows.jsonl", "rows.work"]


def test_several_at_a_time_make_the_same(folder, capsys):
    run(capsys)
    one = Path("results/table.json").read_text()
    assert sorted(ran(run(capsys, "--out", "others", "-n", "3"))) == sorted(ALL)
    assert Path("others/table.json").read_text() == one.replace("results", "others")


def start(*flags):
    command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", "p.yaml", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(found, process, seconds=60):
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.parametrize("step", ["data.txt", "more_s0.txt", "table.json"])
def test_killed_in_any_step_the_same_command_makes_the_same_table(folder, capsys, step):
    run(capsys, "--out", "whole")
    whole = Path("whole/table.json").read_text()
    Path("slow").write_text(step)
    process = start()
    wait_for((folder / "results" / f"{step}.part").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # its command, which has the lock too, may take a moment to end
    Path("slow").unlink()
    again = run(capsys)
    place = [Path(name).name for name in Path("calls").read_text().split() if name.startswith("results/")].index(step)
    assert ran(again) == ALL[place:]  # what had ended is not run again
    assert Path("results/table.json").read_text() == whole
    assert ran(run(capsys)) == []


@pytest.mark.parametrize(("resumes", "lines"), [("true", 2), ("false", 1)])
def test_commands_that_resume_find_what_was_begun_and_others_do_not(folder, resumes, lines):
    part = folder / "results" / "data.txt.part"
    makes = 'makes: "{work}/data.txt'
    Path("p.yaml").write_text(FILE.replace(f'{makes}"', f'{makes}.part"\n    resumes: {resumes}'))
    Path("slow").write_text("data.txt")
    for calls in (1, 2):
        process = start()
        wait_for(
            lambda calls=calls: Path("calls").exists() and len(Path("calls").read_text().split()) == calls, process
        )
        wait_for(lambda: part.exists() and part.read_text(), process)
        time.sleep(0.2)
        found = part.read_text().split()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(found) == lines


def test_a_run_and_what_a_killed_one_left_keep_others_out(folder, capsys):
    Path("slow").write_text("data.txt")
    process = start()
    wait_for((folder / "results/data.txt.part").exists, process)
    for _ in range(2):  # while it runs; and when it was killed, and its command was not
        assert main(["lab", "pipeline", "p.yaml"]) == 2
        assert "another process runs this pipeline, or commands that it started still do" in capsys.readouterr().err
        process.kill()
        process.wait()
    Path("slow").unlink()
    until = time.monotonic() + 30
    while (folder / "results/data.txt.part").exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
    assert ran(run(capsys)) == ALL


def test_what_fails_stops_what_needs_it_and_nothing_else(folder, capsys):
    states = run(capsys, "--set", "extra=fail", code=1)
    assert states == dict.fromkeys(ALL[:3], "ran") | dict.fromkeys(ALL[3:5], "failed") | {"table": "waits"}
    assert ran(run(capsys)) == ALL[3:]


def test_a_step_that_does_not_make_what_it_says_fails(folder, capsys):
    Path("p.yaml").write_text(FILE.replace('makes: "{work}/data.txt"', 'makes: ["{work}/data.txt", "{work}/more.txt"]'))
    assert run(capsys, code=1)["data"] == "failed"
    assert main(["lab", "pipeline", "p.yaml"]) == 1
    assert "did not make results/more.txt" in capsys.readouterr().err


def test_a_command_that_ended_is_not_run_again(folder, capsys):
    Path("p.yaml").write_text(FILE.replace("cat {work}/table.json", "test ! -e stop"))
    Path("stop").touch()
    assert run(capsys, code=1)["table"] == "failed"
    Path("stop").unlink()
    assert ran(run(capsys)) == ["table"]
    assert Path("calls").read_text().count("table") == 1


def test_what_it_did_not_make_is_not_touched(folder, capsys):
    Path("results").mkdir()
    Path("results/plain_s1.txt").write_text("mine")
    assert main(["lab", "pipeline", "p.yaml"]) == 2
    error = capsys.readouterr().err
    assert "step train:plain:1 would make results/plain_s1.txt, which is there, and which it did not make" in error
    assert not Path("calls").exists()
    assert Path("results/plain_s1.txt").read_text() == "mine"


def test_what_is_in_a_new_place_is_not_touched_unless_the_step_made_it_once(folder, capsys):
    text = "settings: {to: a}\nsteps: {copy: {run: 'cp source.txt {work}/{to}', makes: '{work}/{to}'}}"
    Path("p.yaml").write_text(text)
    run(capsys)
    Path("runs/p/b").write_text("mine")
    for flags in ((), ("--dry-run",)):
        assert main(["lab", "pipeline", "p.yaml", "--set", "to=b", *flags]) == 2
        assert "step copy would make runs/p/b, which is there, and which it did not make" in capsys.readouterr().err
    assert Path("runs/p/b").read_text() == "mine"
    Path("runs/p/b").unlink()
    for to in ("b", "a", "b"):
        assert ran(run(capsys, "--set", f"to={to}")) == ["copy"]


def test_a_folder_behind_a_link_counts_and_links_in_a_ring_end(folder, capsys):
    for place in ("input", "other"):
        Path(place).mkdir()
    Path("other/deep.txt").write_text("first")
    Path("input/link").symlink_to(folder / "other")
    Path("input/self").symlink_to(".")
    Path("other/back").symlink_to(folder / "input")
    Path("p.yaml").write_text(
        "steps: {copy: {needs: input, run: 'cp input/link/deep.txt {work}/copy', makes: '{work}/copy'}}"
    )
    run(capsys)
    assert ran(run(capsys)) == []
    Path("other/deep.txt").write_text("other")
    assert ran(run(capsys)) == ["copy"]


def test_what_cannot_be_moved_or_read_is_a_failed_step(folder, capsys, monkeypatch):
    run(capsys)
    monkeypatch.setattr("shutil.move", lambda *_: (_ for _ in ()).throw(PermissionError(13, "not allowed", "x")))
    states = run(capsys, "--set", "extra=z", code=1)
    assert states["train:more:0"] == "failed"
    assert states["train:plain:0"] == "done"
    assert main(["lab", "pipeline", "p.yaml", "--set", "extra=z"]) == 1
    error = capsys.readouterr().err
    assert "train:more:0: [Errno 13] not allowed: 'x'" in error
    assert "Traceback" not in error


def test_a_file_in_place_of_the_folder_and_no_steps_are_one_line(folder, capsys):
    Path("mine").touch()
    assert main(["lab", "pipeline", "p.yaml", "--out", "mine"]) == 2
    assert "mine: is a file; name a folder" in capsys.readouterr().err
    Path("p.yaml").write_text("settings: {host: trl}\nsteps: {a: {when: {host: verl}, run: x, makes: '{work}/a'}}")
    assert main(["lab", "pipeline", "p.yaml"]) == 2
    assert "p.yaml: has no steps with these settings; `when` leaves all out" in capsys.readouterr().err


def test_another_pipelines_folder_is_refused(folder, capsys):
    run(capsys)
    Path("q.yaml").write_text(FILE)
    assert main(["lab", "pipeline", "q.yaml"]) == 2
    assert "results has the results of the pipeline p" in capsys.readouterr().err


def test_a_missing_input_is_said_before_anything_runs(folder, capsys):
    Path("source.txt").unlink()
    assert main(["lab", "pipeline", "p.yaml"]) == 2
    assert "step data needs source.txt, which is not there, and which no step makes" in capsys.readouterr().err
    assert not Path("results").exists()


def test_only_runs_a_step_with_what_it_needs(folder, capsys):
    assert ran(run(capsys, "--only", "train:more:1")) == ["data", "train:more:1"]
    assert sorted(ran(run(capsys, "--only", "train"))) == sorted(ALL[1:4])
    assert main(["lab", "pipeline", "p.yaml", "--only", "trian"]) == 2
    assert "there is no such step; did you mean 'train'?" in capsys.readouterr().err


def test_dry_runs_say_why_and_do_nothing(folder, capsys):
    def states(*flags):
        assert main(["lab", "pipeline", "p.yaml", "--dry-run", "--json", *flags]) == 0
        return {step["name"]: step["why"] for step in json.loads(capsys.readouterr().out)["steps"]}

    assert set(states().values()) == {"new"}
    assert not Path("results").exists()
    run(capsys)
    Path("results/data.txt").write_text("by hand")
    found = states("--set", "extra=z")
    assert found["data"] == "results/data.txt is not as it was made"
    assert found["train:more:0"] == "its commands changed"
    assert found["train:plain:0"] == "results/data.txt changed"
    assert Path("results/data.txt").read_text() == "by hand"


def test_a_launcher_stands_before_every_command(folder, capsys):
    Path("launch").write_text('#!/bin/sh\necho "$@" >> launched\nshift\nexec "$@"\n')
    Path("launch").chmod(0o755)
    Path("p.yaml").write_text(FILE.replace("  data:\n", "  data:\n    env: {MINE: a b}\n"))
    run(capsys, "--launcher", f"{folder}/launch --")
    lines = Path("launched").read_text().splitlines()
    assert len(lines) == 7
    assert lines[0].startswith(f"-- env MINE=a b {sys.executable} -S work.py results/data.txt")


def test_an_interrupt_ends_the_commands_and_says_how_to_go_on(folder, capsys):
    Path("slow").write_text("data.txt")
    process = start()
    wait_for((folder / "results/data.txt.part").exists, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(60) == 130
    assert "interrupted; the same command goes on" in process.stderr.read()
    Path("slow").unlink()
    assert ran(run(capsys)) == ALL
