"""Records of a pipeline's steps, in `.pipeline` of the folder of all results.

A step is done if its commands and variables, the content of its needs and the content of its outputs are as its record has them.
A step's record is written before its first command, so that a killed step is known and goes on with what it wrote. Every other
output that is in the way is moved to `.pipeline/stale`, never removed.
"""

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from wm_plugin.data.outputs import PREFIX, write_text
from wm_plugin.errors import UserError
from wm_plugin.lab.pipelines.expand import Step

FOLDER = ".pipeline"
_FRESH = 2 * 10**9  # nanoseconds: a file this young may change once more without another time


class Status(NamedTuple):
    """Whether a step is done, whether it goes on where a killed run left it, and why it is not done."""

    done: bool
    goes_on: bool = False
    why: str = ""


@dataclass(frozen=True)
class Record:
    """A step's commands, with digests of what it needs and what it made."""

    commands: str
    needs: Mapping[str, str | None]
    ended: int = 0  # how many of its commands
    made: Mapping[str, str | None] | None = None
    paths: Sequence[str] = ()  # its outputs in all runs; what is elsewhere is not its own


class Digests:
    """Digests of files and folders by content. A file is read again only if its size, times or inode changed."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError):  # without what was known it only takes longer
            self._known = json.loads(path.read_bytes())

    def of(self, path: str) -> str | None:
        """Return the digest of a file, or of a folder with the names in it; None if there is nothing."""
        if not os.path.isdir(path):
            return self._of_file(path)
        whole, seen = hashlib.sha256(b"folder"), set()
        for place, folders, files in os.walk(path, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith(PREFIX))
            if os.path.realpath(place) in seen:  # a link led back
                folders.clear()
                continue
            seen.add(os.path.realpath(place))
            for name in sorted(name for name in files if not name.startswith(PREFIX)):
                file = os.path.join(place, name)
                whole.update(json.dumps([os.path.relpath(file, path), self._of_file(file)]).encode())
        return whole.hexdigest()

    def save(self) -> None:
        with self._lock:
            text = json.dumps(self._known)
        write_text(self._path, text + "\n")

    def _of_file(self, path: str) -> str | None:
        if not os.path.isfile(path):  # a pipe has no end
            return "no regular file" if os.path.exists(path) else None
        status, place = os.stat(path), os.path.abspath(path)
        of_now = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        with self._lock:
            known = self._known.get(place)
        if known is not None and known[0] == of_now:
            return str(known[1])
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with self._lock:
            self._known.pop(place, None)
            if time.time_ns() - max(of_now[1:3]) > _FRESH:
                self._known[place] = [of_now, digest]
        return digest


class Records:
    """The records of the pipeline `name` in the folder of results `work`; another pipeline's folder is refused."""

    def __init__(self, work: Path, name: str) -> None:
        self.folder, self._name = work / FOLDER, name
        self.digests = Digests(self.folder / "digests.json")
        with suppress(OSError):
            of = (self.folder / "pipeline").read_text().strip()
            if of != name:
                raise UserError(f"{work} has the results of the pipeline {of}; name another folder with --out")

    def make(self) -> None:
        for name in ("steps", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "pipeline", self._name + "\n")

    def log(self, step: Step, end: str = "log") -> Path:
        """Return the file of a step's output: all of it, or with the end "out" what a step with `show` prints."""
        return self.folder / "logs" / f"{_file(step)}.{end}"

    def read(self, step: Step) -> Record | None:
        """Return a step's record; None if none can be read."""
        try:
            return Record(**json.loads((self.folder / "steps" / f"{_file(step)}.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, step: Step, record: Record) -> None:
        write_text(self.folder / "steps" / f"{_file(step)}.json", json.dumps(asdict(record)) + "\n")

    def wanted(self, step: Step) -> Record:
        """Return the record that a step would have if it began now."""
        return Record(step.key, {step.portable(need): self.digests.of(need) for need in step.needs})

    def made(self, step: Step) -> dict[str, str | None]:
        return {path: self.digests.of(path) for path in step.makes}

    def status(self, step: Step) -> Status:
        """Return whether a step is done; raise UserError if something else is in the place of an output."""
        old = self.read(step)
        own = () if old is None else old.paths
        there = next((path for path in step.makes if path not in own and os.path.lexists(path)), None)
        if there is not None:
            raise UserError(
                f"step {step.name} would make {there}, which is there, and which it did not make: move it away, "
                "or name another folder with --out"
            )
        if old is None:
            return Status(False, why="new")
        now = self.wanted(step)
        if old.commands != now.commands:
            return Status(False, why="its commands changed")
        changed = sorted(
            need for need in now.needs.keys() | old.needs.keys() if now.needs.get(need) != old.needs.get(need)
        )
        if changed:
            return Status(False, why=f"{os.path.normpath(changed[0].replace('{here}', step.here))} changed")
        if old.made is None:
            return Status(False, step.resumes, "it did not end")
        for path, digest in self.made(step).items():
            if digest is None:
                return Status(False, why=f"{path} is gone")
            if old.made.get(path) != digest:
                return Status(False, why=f"{path} is not as it was made")
        return Status(True)

    def aside(self, path: str) -> str:
        """Move what is in an output's place to a new folder, where no command looks; return its new place."""
        for number in itertools.count(1):
            folder = self.folder / "stale" / str(number)
            with suppress(FileExistsError):  # another step may take the number at the same time
                folder.mkdir(parents=True)
                break
        shutil.move(path, folder / Path(path).name)  # which copies where the two are on different disks
        return str(folder / Path(path).name)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Keep other runs out, and yield the lock's file, which commands inherit: one that outlives its run keeps it."""
        lock = self.folder / "lock"
        with open(lock, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.folder.parent}: another process runs this pipeline, or commands that it started still do "
                    f"(fuser {lock} lists them); wait for them, or end them"
                ) from None
            except OSError:
                pass  # the file system has no locks
            yield file.fileno()


def _file(step: Step) -> str:
    name = quote(step.name, safe=":-_ ")
    return name if len(name) <= 200 else f"{name[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
