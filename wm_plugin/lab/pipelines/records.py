"""What a run remembers of its steps, in `.pipeline` of the folder of all results, and what follows from it.

A step is done if its commands and variables, the content of what it needs and the content of what it made are as the record has
them. The record of a step that began is written before its first command, so that a killed one is known: its outputs are its own,
and its commands go on with them. Every other output that is in the way is moved to a folder of
`.pipeline/stale`, never removed.
"""

import fcntl
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from wm_plugin.data.outputs import write_text
from wm_plugin.errors import UserError
from wm_plugin.lab.pipelines.digests import Digests
from wm_plugin.lab.pipelines.expand import Step
from wm_plugin.untrusted import loads

FOLDER = ".pipeline"
VERSION = 1


class Status(NamedTuple):
    """Whether a step is done, whether it goes on where a killed run left it, and why it is not done."""

    done: bool
    goes_on: bool = False
    why: str = ""


@dataclass(frozen=True)
class Record:
    """Of a step: digests of its commands and of what it needs; how many of its commands ended; digests of what it made.

    Attributes:
        paths: all that the step ever was to make. What is in another place is not its own.
    """

    commands: str
    needs: Mapping[str, str | None]
    ended: int = 0
    made: Mapping[str, str | None] | None = None
    paths: Sequence[str] = ()


class Records:
    """The records of one folder of results.

    Args:
        work: the folder.
        name: the pipeline's. Another pipeline's folder is refused.

    Raises:
        UserError: as said.
    """

    def __init__(self, work: Path, name: str) -> None:
        self.folder = work / FOLDER
        self.digests = Digests(self.folder / "digests.json")
        self._name = name
        try:
            of = loads((self.folder / "pipeline.json").read_bytes())
        except (OSError, ValueError):
            return
        if isinstance(of, dict) and of.get("pipeline") != name:
            raise UserError(
                f"{work} has the results of the pipeline {of.get('pipeline')}; name another folder with --out"
            )

    def make(self) -> None:
        """Make the folder."""
        (self.folder / "steps").mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        write_text(self.folder / "pipeline.json", json.dumps({"pipeline": self._name, "version": VERSION}) + "\n")

    def log(self, step: Step) -> Path:
        """The file of what a step's commands print."""
        return self.folder / "logs" / f"{_file(step)}.log"

    def shown(self, step: Step) -> Path:
        """The file of what a step with `show` prints."""
        return self.folder / "logs" / f"{_file(step)}.out"

    def read(self, step: Step) -> Record | None:
        """A step's record; None if there is none that can be read."""
        try:
            value = loads((self.folder / "steps" / f"{_file(step)}.json").read_bytes())
            return Record(**{name: value[name] for name in Record.__dataclass_fields__ if name in value})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, step: Step, record: Record) -> None:
        write_text(self.folder / "steps" / f"{_file(step)}.json", json.dumps(vars(record)) + "\n")

    def wanted(self, step: Step) -> Record:
        """The record that a step would have if it began now."""
        needs = {step.names.get(need, need): self.digests.of(need, step.logs) for need in step.needs}
        return Record(hashlib.sha256(step.key.encode(errors="backslashreplace")).hexdigest(), needs)

    def made(self, step: Step) -> dict[str, str | None]:
        """The digests of what a step made."""
        return {path: self.digests.of(path, step.logs) for path in step.makes}

    def check(self, step: Step) -> Record | None:
        """A step's record, as from `read`.

        Raises:
            UserError: something is in the place of an output that the step did not make.
        """
        old = self.read(step)
        own = {*old.paths, *(old.made or ())} if old is not None else set()
        if old is None or own:  # a record of an older version may not say
            there = next((path for path in step.makes if path not in own and os.path.lexists(path)), None)
            if there is not None:
                raise UserError(
                    f"step {step.name} would make {there}, which is there, and which it did not make: move it away, "
                    "or name another folder with --out"
                )
        return old

    def status(self, step: Step) -> Status:
        """Whether a step is done.

        Raises:
            UserError: something is in its place that it did not make.
        """
        old = self.check(step)
        if old is None:
            return Status(False, why="new")
        now = self.wanted(step)
        if old.commands != now.commands:
            return Status(False, why="its commands changed")
        before = {step.names.get(need, need): digest for need, digest in old.needs.items()}
        changed = sorted(need for need in now.needs.keys() | before.keys() if now.needs.get(need) != before.get(need))
        if changed:
            places = {name: need for need, name in step.names.items()}
            return Status(False, why=f"{places.get(changed[0], changed[0])} changed")
        if old.made is None:
            return Status(False, step.resumes, "it did not end")
        made = self.made(step)
        for path, digest in made.items():
            if digest is None:
                return Status(False, why=f"{path} is gone")
            if old.made.get(path) != digest:
                return Status(False, why=f"{path} is not as it was made")
        return Status(True)

    def aside(self, path: str) -> str:
        """Move what is in an output's place to a folder of its own, where no command looks. Returns its new place."""
        stale = self.folder / "stale"
        stale.mkdir(exist_ok=True)
        for number in itertools.count(1):
            folder = stale / str(number)
            with suppress(FileExistsError):  # another step may take the number at the same time
                folder.mkdir()
                break
        shutil.move(path, folder / Path(path).name)  # which copies where the two are on different disks
        return str(folder / Path(path).name)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Keep other runs out. Commands inherit the file that this gives: one that outlives a killed run keeps them out, too.

        Raises:
            UserError: another run, or a command that one left, has it.
        """
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                raise UserError(
                    f"{self.folder.parent}: process {holder or '?'} runs this pipeline, or commands that it started still do "
                    f"(fuser {self.folder / 'lock'} lists them); wait for them, or end them"
                ) from None
            except OSError:
                pass  # the file system has no locks
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)


def _file(step: Step) -> str:
    name = quote(step.name, safe=":-_ ")
    return name if len(name) <= 200 else f"{name[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
