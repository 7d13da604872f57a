"""Digests of files and folders by their content. A file is read again only where the system says that it was changed."""

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import PREFIX, write_text
from wm_plugin.untrusted import loads

_BLOCK = 1 << 20  # bytes that are read at once
_FRESH = 2 * 10**9  # nanoseconds: a file this young may change once more without another time


class Digests:
    """Digests, kept in a file between runs. A file that is lost or damaged only costs time.

    A file counts as unchanged while its size, its number and its times are: nobody can set the time of the last change of status.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError):
            found = loads(path.read_bytes())
            if isinstance(found, dict):
                self._known = {name: one for name, one in found.items() if isinstance(one, list) and len(one) == 2}

    def of(self, path: str, logs: Sequence[str] = ()) -> str | None:
        """The digest of a file, or of a folder with the names in it; None if there is nothing.

        Args:
            logs: patterns of names below the folder that do not count. Unfinished files of ours never do.
        """
        return self._of(path, logs, [])

    def _of(self, path: str, logs: Sequence[str], seen: list[str]) -> str | None:
        """As `of`; `seen` are the folders that were read before, to which links may lead back."""
        if not os.path.isdir(path):
            return self._of_file(path)
        whole = hashlib.sha256(b"folder")
        seen.append(os.path.realpath(path))
        for name in _below(path, logs):
            place = os.path.join(path, name)
            target = os.path.realpath(place)
            if not os.path.isdir(place):
                digest = self._of_file(place)
            elif any(f"{target}{os.sep}".startswith(f"{one}{os.sep}") for one in seen):
                digest = os.readlink(place)  # what it leads to counts by itself
            else:
                digest = self._of(place, logs, seen)
            if digest is not None:
                whole.update(json.dumps([name, digest]).encode())
        return whole.hexdigest()

    def save(self) -> None:
        with self._lock:
            text = json.dumps(self._known)
        write_text(self._path, text + "\n")

    def _of_file(self, path: str) -> str | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):  # a pipe has no end
            return "no regular file"
        of_now = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        place = os.path.abspath(path)
        with self._lock:
            known = self._known.get(place)
        if known is not None and known[0] == of_now:
            return str(known[1])
        whole = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                whole.update(block)
        with self._lock:
            self._known.pop(place, None)
            if time.time_ns() - max(of_now[1:3]) > _FRESH:
                self._known[place] = [of_now, whole.hexdigest()]
        return whole.hexdigest()


def _below(folder: str, logs: Sequence[str]) -> Iterator[str]:
    """The names of the files in a folder and below, and of links to folders, sorted."""
    for place, folders, files in os.walk(folder):
        here = os.path.relpath(place, folder)
        folders[:] = sorted(name for name in folders if not name.startswith(PREFIX))
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted([*files, *links]):
            path = os.path.normpath(os.path.join(here, name))
            if not name.startswith(PREFIX) and not any(fnmatch(path, one) or fnmatch(name, one) for one in logs):
                yield path
