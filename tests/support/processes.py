"""Engines for the tests of processes and of what stands on them."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.commands import CommandEnvironment
from wm_plugin.worlds.kit.process import EngineProcess


class Toy:
    """Counts to three. It can hang, die, fail, print and start a child of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = 0) -> str:
        if count < 0:
            raise UserError("count is below 0")
        self.count = count
        return f"count {count}"

    def step(self, command: str) -> dict[str, Any]:
        if command == "hang":
            self.hang()
        if command == "die":
            self.die()
        if command == "fail":
            raise KeyError("no key")
        before = self.count
        self.count += command == "up"
        won = self.count == 3
        known = command in ("up", "stay")
        text = f"count {self.count}" if known else "what?"
        score = self.count / 3
        return {"text": text, "score": score, "won": won, "over": won, "valid": known, "changed": self.count != before}

    def plan(self) -> list[str]:
        return ["up"] * (3 - self.count)

    def commands(self) -> list[str]:
        return ["stay", "up"]

    def echo(self, value: Any) -> Any:
        return value

    def hang(self) -> None:
        time.sleep(1000)

    def die(self) -> None:
        os._exit(7)

    def say(self, text: str) -> str:
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
        os.write(1, text.encode())
        return sys.stdin.read()

    def about(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "hash": hash("a"), "path": sys.path}

    def child(self) -> int:
        self.children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]))
        return self.children[-1].pid


class ToyEnvironment(CommandEnvironment):
    _engine = "support.processes:Toy"
    _timeout = 10.0

    def reset(self, count: int = 0, max_turns: int | None = None, **_: Any) -> str:
        return self._start(max_turns or 5, count)

    def act(self, command: str) -> str:
        return self._act(command)


def call_an_engine(pipe: Any, engine: str) -> None:
    """What a spawned process runs. It is not in the test's module: verl installs a package `tests`, which hides ours there."""
    process = EngineProcess(engine)
    pipe.send(process.call("echo", "from a daemon"))
    process.close()


def members(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    rows = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            rows.append(path.read_text().rpartition(")")[2].split())
    return [row[1] for row in rows if row[2] == str(group) and row[0] != "Z"]


def mentioning(mark: str) -> list[str]:
    """The processes whose command line has `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def wait_for_the_end_of(mark: str, seconds: float = 10) -> None:
    """Fail if a process whose command line has `mark` is still there: the kernel takes a moment to end a killed one."""
    deadline = time.monotonic() + seconds
    while left := mentioning(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
