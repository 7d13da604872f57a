"""The terminal: every kind of task with its reference, nothing done, and a wrong one; what checks see; the verifier."""

import gc
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.shell import memory, needs_shell, running
from wm_plugin.data import Trajectory
from wm_plugin.data.schema import Call
from wm_plugin.errors import UserError
from wm_plugin.worlds.terminal import TerminalEnvironment, dataset_rows, effects, is_irreversible
from wm_plugin.worlds.terminal.tasks import UNSEEN, kinds, make
from wm_plugin.worlds.wrappers.verified import verified

pytestmark = [pytest.mark.system, needs_shell]
FAMILIES = {kind.family: name for name, kind in kinds().items()}  # one kind of each


def outcome(environment, task, seed, commands):
    environment.reset(task=task, task_seed=seed)
    for command in commands:
        environment.run(command)
    return environment.success


@pytest.mark.parametrize(
    ("names", "seeds"),
    [
        (list(FAMILIES.values()), [4]),
        pytest.param(list(kinds()), [10], marks=pytest.mark.slow),
        pytest.param(list(kinds()), range(11, 16), marks=pytest.mark.nightly),
    ],
    ids=["one-of-each-family", "all", "all-again"],
)
def test_a_reference_passes_and_nothing_done_or_a_wrong_one_fails(names, seeds):
    environment = TerminalEnvironment()
    for name in names:
        for seed in seeds:
            task = make(name, seed)
            found = [outcome(environment, name, seed, commands) for commands in (task.solution, ["true"], task.wrong)]
            assert found == [True, False, False], (name, seed)
            assert "@" not in task.text.replace("$@", "")
    assert {kind.family for kind in kinds().values()} == set(FAMILIES) > set(UNSEEN)


def test_an_episode():
    environment = TerminalEnvironment()
    assert environment.reset(task="too_large+which_commit", task_seed=5, max_turns=10) == "The shell is open."
    assert environment.world_context().startswith("755 one/\n755 one/candle/\n644 one/candle/drawer.dat\nx")
    task = environment._task
    for command in task.solution:
        seen = environment.run(command)
    assert (environment.success, environment.get_reward(), environment.over) == (True, 1.0, False)
    assert seen.endswith("[exit code 0]")
    kept = sorted(task.kept())
    assert environment.run("nothing; x=1") == "bash: nothing: command not found\n[exit code 0]"
    assert environment.run("exit 4") == (
        "exit\n[exit code 4, the shell ended; a new shell has the files and the folder, but no variables, functions or options]"
    )
    assert environment.run("") == "Invalid: command is empty."
    assert environment.run(None) == "Invalid: command must be text.\nThe episode is over."
    figures = {"actions": 10, "effective": 6, "invalid": 3, "lost": 0}
    assert {name: environment.metrics[name] for name in figures} == figures
    assert environment._shell is None
    assert environment.success
    # a file that the task does not name is kept, to the byte
    environment.reset(task="union", task_seed=5)
    for command in make("union", 5).solution:
        environment.run(command)
    assert environment.success
    assert kept == []
    environment.run(f"echo >> {sorted(make('union', 5).kept())[0]}")
    assert not environment.success
    with pytest.raises(UserError, match="did you mean 'union'"):
        environment.reset(task="unions", task_seed=1)
    for bad in ("union+union+union", "union+x", 5, None):
        with pytest.raises(UserError, match="column `task` is"):
            environment.reset(task=bad, task_seed=1)


def test_a_check_cannot_be_bent_by_what_the_episode_leaves_in_the_shell():
    environment = TerminalEnvironment()
    task = make("modes", 3)
    expected = json.dumps(task.checks[0][1])
    environment.reset(task="modes", task_seed=3)
    environment.run(
        f"stat() {{ printf {expected}; }}; export -f stat; mkdir bin; printf 'echo hi' > bin/stat; chmod +x bin/stat"
    )
    environment.run(
        "PATH=~/bin:$PATH; echo 'PATH=~/bin:$PATH' > .bashrc; cp .bashrc .profile; cp .bashrc .bash_profile"
    )
    assert not environment.success


def test_a_check_that_ends_the_shell_does_not_hold():
    environment = TerminalEnvironment()
    environment.reset(task="tabs", task_seed=3)
    target = make("tabs", 3).files["Makefile"].partition(":")[0]
    printed = make("tabs", 3).checks[0][1]
    recipe = f"{target}:\n\t@cat says; kill -9 -1\n"
    environment.run(f"printf %s {shlex.quote(printed)} > says; printf %s {shlex.quote(recipe)} > Makefile")
    assert not environment.success
    environment._close()


EVIL = """#!/bin/sh
echo ran >> ~/ran
grep -q status /proc/$PPID/cmdline && kill -9 $PPID
echo x
"""
PLANTED = (
    "git config core.fsmonitor ~/evil",
    "mkdir -p .git/hooks; cp ~/evil .git/hooks/post-index-change; git config core.hooksPath .git/hooks",
    "git config filter.x.clean ~/evil; echo '* filter=x' > .git/info/attributes; touch *",
    "git config --global filter.x.clean ~/evil; git config --global core.attributesFile ~/a; echo '* filter=x' > ~/a; touch *",
    "git config alias.status '!~/evil'; git config core.pager ~/evil; git config pager.status true",
    "git config status.showUntrackedFiles no",
    "mv .git ~/g; echo gitdir: ~/g > .git; git config core.fsmonitor ~/evil",
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_git_in_a_check_runs_nothing_that_was_planted(planted):
    """All is done but that `git status` shows two files, and what is planted hides them: it ends git, or says what git shows."""
    environment = TerminalEnvironment()
    task = make("first_commit", 4)
    environment.reset(task="first_commit", task_seed=4, max_turns=30)
    for command in task.wrong:  # commits the .tmp files, too
        environment.run(command)
    environment.run('git rm -q --cached *.tmp; git commit -q --amend -m "$(git log -1 --format=%s)"')
    environment.run(f"printf %s {shlex.quote(EVIL)} > ~/evil; chmod +x ~/evil; {planted}")
    assert not environment.success
    environment.run("echo '*.tmp' >> $(git rev-parse --git-path info/exclude)")
    assert environment.success  # by git's own means, whatever else is planted
    environment._close()


def left_by(inner):
    """What a sandbox may leave: its process, files of its pipes, and mounts."""
    folders = [f"/proc/self/task/{task}/children" for task in os.listdir("/proc/self/task")]
    children = sum(len(open(folder).read().split()) for folder in folders)  # noqa: SIM115
    with open("/proc/self/mountinfo") as file:
        mounts = file.read()
    return [number for number in inner if running(number)], children, len(os.listdir("/proc/self/fd")), mounts


def episode(number):
    """Play an episode; return the numbers of its sandbox. One in four ends in the middle."""
    environment = TerminalEnvironment()
    row = ROWS[number % len(ROWS)]
    environment.reset(**row)
    inner = environment._shell._pipes.sandbox.inner
    environment.run("sleep 99 & (setsid sleep 98 &); mkdir -p ~/new; echo $$")
    for command in environment._task.solution if number % 4 else []:
        environment.run(command)
    assert not number % 4 or environment.success
    return inner


ROWS = dataset_rows(10, seed=3)


@pytest.mark.parametrize(
    "count", [pytest.param(24, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.nightly)]
)
def test_episodes_leave_nothing(count, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    episode(0)
    gc.collect()
    before = left_by([])
    with ThreadPoolExecutor(4) as pool:
        inner = [*pool.map(episode, range(count))]
    gc.collect()
    assert left_by(inner) == before
    assert not list(tmp_path.iterdir())


PLAYING = """
import sys
from concurrent.futures import ThreadPoolExecutor
from worlds.test_terminal import TerminalEnvironment, episode
start = TerminalEnvironment.reset
def noted(self, **row):
    text = start(self, **row)
    sys.stdout.write(f"{self._shell._pipes.sandbox.inner}\\n")  # at once: six threads write
    sys.stdout.flush()
    return text
TerminalEnvironment.reset = noted
with ThreadPoolExecutor(6) as pool:
    list(pool.map(episode, range(10**6)))
"""


@pytest.mark.slow
def test_a_host_that_is_killed_while_it_plays_leaves_nothing(tmp_path):
    tests = str(Path(__file__).parents[1])
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": tests}
    with subprocess.Popen([sys.executable, "-c", PLAYING], stdout=subprocess.PIPE, text=True, env=environment) as host:
        inner = [int(host.stdout.readline()) for _ in range(25)]
        host.kill()
        inner += map(int, host.stdout.read().split())
    with open("/proc/self/mountinfo") as file:
        assert str(tmp_path) not in file.read()
    deadline = time.monotonic() + 10
    while left := [number for number in inner if running(number)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_same_row_and_commands_give_the_same_texts_in_64_shells_at_once():
    rows = dataset_rows(4, seed=3, level="hard-2")

    def play(number):
        environment = TerminalEnvironment()
        row = rows[number % 4]
        environment.reset(**row)
        return (
            row["task"],
            [environment.run(command) for command in environment._task.solution],
            environment.success,
            environment,
        )

    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(play, range(64)))
    by_task = {task: (texts, success) for task, texts, success, _ in played}
    assert all((texts, success) == by_task[task] for task, texts, success, _ in played)
    assert all(success for *_, success, _ in played)
    inner = [environment._shell._pipes.sandbox.inner for *_, environment in played]
    assert all(map(running, inner))
    assert sum(map(memory, inner)) < 1 << 30  # the processes, of 4 GiB that 64 terminals may take with their files
    played.clear()
    assert not any(map(running, inner))


def test_rows_of_levels_and_splits():
    for level in ("standard", "hard-1", "hard-2"):
        families = {}
        for split in ("train", "seen", "unseen"):
            rows = dataset_rows(40, seed=2, level=level, split=split)
            families[split] = {kinds()[name].family for row in rows for name in row["task"].split("+")}
            assert all(("+" in row["task"]) is (level == "hard-2") for row in rows)
        assert families["train"] == families["seen"]
        assert families["unseen"] == set(UNSEEN)
        assert not families["train"] & set(UNSEEN)


def test_what_deletes_or_overwrites_is_named_for_the_verifier():
    for command, kinds_of in (
        ("ls -l; cat a >> b; echo x 2>&1 > /dev/null", set()),
        ("rm -r a", {"deletes"}),
        ("find . -name x -delete", {"deletes"}),
        ("git reset --hard", {"deletes"}),
        ("echo x>a", {"overwrites"}),
        ("sed -i s/a/b/ f", {"overwrites"}),
        ("cd x&&mv a b;rm c", {"deletes", "overwrites"}),
    ):
        assert effects(command) == kinds_of, command
        called = is_irreversible(Call(name="run", arguments={"command": command}), Trajectory(turns=()))
        assert called is bool(kinds_of)


@pytest.mark.host  # schemas
def test_a_verifier_that_refuses_what_is_irreversible():
    refusing = verified(TerminalEnvironment, {"control": "refuse", "budget": 9})
    environment = refusing()
    row = dataset_rows(1, seed=3)[0] | {"task": "too_large", "task_seed": 3}
    environment.reset(**row)
    assert TerminalEnvironment.irreversible == ("run",)
    assert "exit code 0" in environment.run(command="ls")
    assert "exit code" not in environment.run(command="rm -r *")
    assert environment.metrics["verify/refused"] == 1
    every = verified(TerminalEnvironment, {"control": "refuse", "budget": 9, "tools": ["run"]})()
    every.reset(**row)
    assert "exit code" not in every.run(command="ls")
