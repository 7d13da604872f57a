"""Reads and writes the files of a sandbox from outside: each part of a path is opened without following a link."""

import ctypes
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from wm_plugin.errors import UserError, shown
from wm_plugin.runtime import sandbox
from wm_plugin.worlds.kit.shell_box import CLOCK, HOME, ROOTS


class Entry(NamedTuple):
    """A "file", "folder" or "link": the permission bits, and the bytes of a file or of a link's target."""

    kind: str
    mode: int = 0o755
    content: bytes = b""


def parts_of(path: str) -> list[str]:
    parts = PurePosixPath(HOME, path).parts
    if ".." in parts or "\0" in path or not any(PurePosixPath(HOME, path).is_relative_to(top) for top in ROOTS):
        raise UserError(f"{shown(path)} is no path in {' or '.join(ROOTS)}, without ..")
    return list(parts[1:])


@contextmanager
def open_folder(root: str, parts: Sequence[str], make: bool = False) -> Iterator[int]:
    """Open a folder."""
    number = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=number)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
            os.close(number)
            number = inner
        yield number
    finally:
        os.close(number)


@contextmanager
def as_owner() -> Iterator[None]:
    """Let this thread make files as the sandbox's user. Root, which that has no number for, could make none."""
    if not sandbox.unprivileged():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.setfsgid(sandbox.NOBODY)
    libc.setfsuid(sandbox.NOBODY)
    try:
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)


def read_file(folder: int, name: str, most: int) -> bytes:
    number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError
        return file.read(most)


def write_entry(folder: int, name: str, content: str | bytes | Entry) -> None:
    if not isinstance(content, Entry):
        content = Entry("file", 0o644, content.encode() if isinstance(content, str) else content)
    if content.kind == "link":
        os.symlink(content.content, name, dir_fd=folder)
        os.utime(name, (CLOCK, CLOCK), dir_fd=folder, follow_symlinks=False)
        return
    if content.kind == "folder":
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        number = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        number = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        data = memoryview(content.content)
        while data:
            data = data[os.write(number, data) :]
        os.fchmod(number, content.mode)
        os.utime(number, (CLOCK, CLOCK))
    finally:
        os.close(number)


def entry_of(folder: int, name: str, most: int) -> Entry:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Entry("folder", mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry("link", mode, os.fsencode(os.readlink(name, dir_fd=folder)))
    if status.st_size > most:
        raise OSError
    return Entry("file", mode, read_file(folder, name, most))
