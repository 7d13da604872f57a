"""swe: find and mend a fault in a small Python repository, with bash and an editor; hidden tests decide.

The repository is in a sandboxed shell (`kit.shell`), so that observations are what bash, Python and unittest print. The hidden
tests run when the reward is computed, on the package's modules alone (`judge`), and appear in no observation. Packages, tests and
faults are our own: packages in packages/, and faults of twelve kinds, which `benchmarks/swe_tasks.py` plants, in tasks.jsonl.
"""

import posixpath
import random
import re
import zlib
from difflib import get_close_matches
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.kit import shell
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import (
    KINDS,
    SPLITS,
    Rows,
    check_count,
    check_level,
    draws,
    repeated,
    rows_of,
    split_of,
    turn_limit,
)
from wm_plugin.worlds.kit.shell_box import CLOCK, HOME
from wm_plugin.worlds.specs import SPECS, described_as
from wm_plugin.worlds.swe import judge
from wm_plugin.worlds.swe.history import history
from wm_plugin.worlds.swe.tasks import Task, package, tasks

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "SweEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = 20
MAX_TEXT = 10_000  # characters of an argument
MAX_FILE, MAX_MODULES = (
    1 << 18,
    50,
)  # characters of a file that is edited, and of all modules that are tested; their number
LEVELS = ("standard", "hard-1")
UNSEEN_PACKAGES = ("router", "tasks")
UNSEEN_KINDS = ("stale-state", "swapped-arguments")
INSTRUCTION = SPECS["swe"].instruction
AROUND = 3  # lines before and after an edit that are shown
NO_EDIT = "No replacement was made: "
ENDS = {limit: f", stopped: the limit of {limit}" for limit in ("time", "output", "processes", "memory")}
ENDS["ended"] = ", the shell ended"
SECONDS = re.compile(r"^(Ran [0-9]{1,9} tests? in )[0-9]{1,9}\.[0-9]{3}s$", re.MULTILINE)  # of unittest
MODULE = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*\.py")


@described_as("swe")
class SweEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls; the reward is 1 if the package passes all hidden tests as it is in the end.

    A call of bash is effective when the same command has not printed the same before, a call of edit when it replaces something.
    """

    observer = "tool"
    refusals = ("Invalid: ", NO_EDIT)
    irreversible_when = "wm_plugin.worlds.terminal:is_irreversible"
    _lost = 0
    _task: Task | None = None
    _shell: shell.Shell | None = None

    def _begin(self) -> None:
        super()._begin()
        self._judged: tuple[int, bool] = (0, False)  # after so many turns, whether the package passes

    def reset(self, task: str, level: str = "standard", max_turns: int | None = None, **_: Any) -> str:
        """Begin a task.

        Args:
            task: its name, a key of `tasks()`.
        """
        if not isinstance(task, str) or task not in tasks():
            near = get_close_matches(task[:60], tasks(), n=1) if isinstance(task, str) else []
            hint = f"did you mean {near[0]!r}?" if near else f"write a name such as {next(iter(tasks()))!r}"
            raise UserError(f"swe's column `task` is {shown(task)}; {hint}")
        check_level(level, LEVELS, "world swe")
        judge.check()
        shell.check()
        limit = turn_limit(max_turns, MAX_TURNS)
        if self._shell is not None:
            self._shell.close()
        self._task, self.max_turns = tasks()[task], limit
        self._begin()
        files = self._task.repository(hard=level != "standard")
        git = history(files, CLOCK, f"Add {self._task.package}")
        self._root = f"{HOME}/{self._task.package}"
        try:
            self._shell = shell.Shell({f"{self._root}/{path}": text for path, text in {**files, **git}.items()})
            self._shell.run(f"cd {self._root}")
        except shell.LostError:
            self._lose()
        return f"The repository is in {self._root}, the folder of your shell."

    def bash(self, command: str) -> str:
        if refusal := self._take_turn(MAX_TEXT, command=command):
            return refusal
        assert self._shell is not None
        try:
            result = self._shell.run(command)
        except shell.LostError:
            self._lose()
            return self._observe("The shell is gone.")
        text = _printed(result)
        self._note(True, "bash", command, text)
        return self._observe(text)

    def edit(self, path: str, old: str, new: str) -> str:
        if refusal := self._take_turn(MAX_TEXT, path=path, old=old, new=new):
            return refusal
        assert self._shell is not None
        place = posixpath.normpath(posixpath.join(self._root, path))
        path = posixpath.relpath(place, self._root)
        text, changed, problem = "", "", ""
        try:
            text, problem = _text(path, self._shell.read(place))
            problem = problem or _why_not(path, text, old, new)
            changed = text.replace(old, new, 1)
            if not problem:
                self._shell.write(place, changed)
        except UserError as error:  # no path in the shell
            problem = str(error)
        if problem:
            self._invalid += 1
            return self._observe(f"{NO_EDIT}{problem}.")
        self._effective += 1
        return self._observe(_snippet(path, changed, text.index(old), new))

    def _observe(self, text: str) -> str:
        if self.over:
            self._close()
        return super()._observe(text)

    def _close(self) -> None:
        """End the shell, once it is decided whether the package passes."""
        if self._shell is not None:
            _ = self.success
            self._shell.close()
            self._shell = None

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def success(self) -> bool:
        if self._judged[0] != self.turns and not self._lost:
            self._judged = self.turns, self._passes()
        return self._judged[1] and not self._lost

    def _passes(self) -> bool:
        """Return whether the package, as it is now, passes all its tests."""
        if self._task is None or self._shell is None:
            return False
        of = package(self._task.package)
        try:
            self._shell.run(":")  # a file's absence says nothing if the shell is gone
        except shell.LostError:
            self._lose()
            return False
        files = self._shell.files(f"{self._root}/{of.name}")
        modules = {
            path: entry.content for path, entry in files.items() if entry.kind == "file" and MODULE.fullmatch(path)
        }
        if len(modules) > MAX_MODULES or sum(len(content or b"") for content in modules.values()) > MAX_FILE:
            return False
        tests = [test.lines for test in of.tests]
        try:
            found = judge.run(of.name, {path: content or b"" for path, content in modules.items()}, tests)
        except OSError:
            self._lose()
            return False
        return not judge.failures(found, tests)


def _printed(result: shell.Result) -> str:
    """Return what a command printed, with the seconds of unittest standing still, and how it ended unless with 0."""
    text = SECONDS.sub(r"\g<1>0.001s", result.output).rstrip("\n")
    end = f"exit code {result.code}" if result.code or result.failure else "" if text else "no output"
    if result.failure is not None:
        end += ENDS[result.failure]
    if result.restarted:
        end += "; a new shell has the files and the folder, but no variables"
    return "\n".join(filter(None, [text, f"[{end}]" if end else ""]))


def _text(path: str, content: bytes | None) -> tuple[str, str]:
    """Return a file's text, and why it cannot be edited or ""."""
    if content is None:
        return "", f"there is no file {path}"
    if len(content) > MAX_FILE:
        return "", f"{path} is too large"
    try:
        return content.decode(), ""
    except UnicodeDecodeError:
        return "", f"{path} is no text in UTF-8"


def _why_not(path: str, text: str, old: str, new: str) -> str:
    """Return why `old` cannot be replaced in a text, or ""."""
    if not old:
        return "old is empty"
    if old == new:
        return "old and new are the same"
    count = text.count(old)
    if not count:
        same = " ".join(old.split()) in " ".join(text.split())
        return f"old does not occur in {path}" + ("; it does with other white space" if same and old.split() else "")
    if count > 1:
        starts: list[str] = []
        place = -1
        while (place := text.find(old, place + 1)) >= 0 and len(starts) < 10:
            starts.append(str(text.count("\n", 0, place) + 1))
        return f"old occurs {count} times in {path}, in lines {', '.join(starts)}; write more of the lines around it"
    return ""


def _snippet(path: str, text: str, place: int, new: str) -> str:
    """Return the lines around what was replaced, as `cat -n` shows them."""
    first = text.count("\n", 0, place)
    last = first + new.removesuffix("\n").count("\n")
    start, lines = max(0, first - AROUND), text.splitlines()
    shown = [f"{number:6d}\t{line}" for number, line in enumerate(lines[start : last + AROUND + 1], start + 1)]
    return "\n".join([f"{path} was edited. Here it is now:", *shown])


def split_names(part: str) -> list[str]:
    """Return the names of a split's tasks. A tenth of the tasks with packages and faults of training is kept for seen."""
    names = []
    for task in tasks().values():
        unseen = task.package in UNSEEN_PACKAGES or task.kind in UNSEEN_KINDS
        seen = zlib.crc32(task.name.encode()) % 10 == 0
        if part == ("unseen" if unseen else "seen" if seen else "train"):
            names.append(task.name)
    return names


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows with the columns `prompt`, `task`, `package`, `kind` (of fault) and `level`.

    standard shows lines that fail, and a test of the repository fails; hard-1 says in words what is wrong, and all of the
    repository's tests pass. Training tasks are repeated as often as `count` needs; each of the others occurs once.

    Args:
        held_out: the same as the split unseen.
        split: train; seen, other faults of these kinds in the packages of training; or unseen, other packages or kinds of faults.
    """
    check_level(level, LEVELS, "world swe")
    part = split_of(split, held_out, "world swe")
    names = split_names(part)
    if part != "train":
        check_count(count, len(names), f"swe has {{}} {KINDS[part]} tasks")
    rows = []
    for name in repeated(draws(seed, part), names, count):
        task = tasks()[name]
        words = {"package": task.package, "task": task.report(hard=level != "standard")}
        rows.append({"words": words, "task": name, "package": task.package, "kind": task.kind, "level": level})
    return rows_of(INSTRUCTION, rows, max_turns, MAX_TURNS, "tool call")


def expert() -> Chooser:
    """Return a policy that runs the tests, looks at the module, mends it, and runs the tests again."""

    def choose(environment: SweEnvironment) -> ToolCall | None:
        task = environment._task
        assert task is not None
        path, (old, new) = f"{task.package}/{task.module}", task.fix
        calls: list[ToolCall] = [
            ("bash", {"command": "python3 -m unittest"}),
            ("bash", {"command": f"cat {path}"}),
            ("edit", {"path": path, "old": old, "new": new}),
            ("bash", {"command": "python3 -m unittest"}),
        ]
        return calls[environment.turns] if environment.turns < len(calls) else None

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that looks around, runs tests and lines of Python, and makes edits, most of them wrong."""

    def choose(environment: SweEnvironment) -> ToolCall:
        task = environment._task
        assert task is not None
        module = rng.choice(sorted(package(task.package).modules))
        path = f"{task.package}/{module}"
        if rng.random() < 0.3:
            edits = [task.fix, task.wrong, ("return", "return not"), ("import this", ""), (task.fix[0], task.fix[0])]
            old, new = rng.choice(edits)
            return "edit", {"path": rng.choice([path, f"{task.package}/{task.module}"]), "old": old, "new": new}
        commands = [
            *(
                "ls -l",
                f"cat {path}",
                "python3 -m unittest",
                f"grep -n 'def ' {path}",
                f"head -n 20 {path}",
                "pwd",
                "git diff",
            ),
            *(f"python3 -c 'import {task.package}; print({task.package}.__doc__)'", "cat README"),
            *(f"cd {environment._root}/{task.package}", f"cd {environment._root}"),
        ]
        return "bash", {"command": rng.choice(commands)}

    return choose
