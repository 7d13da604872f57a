"""Opens output files: the one place that checks where an output goes and gives it its name once it is complete."""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from wm_plugin.errors import UserError

_UNFINISHED = ".unfinished"


def check_out(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse an output that cannot be written, before hours of work.

    Raises:
        UserError: the name does not end in one of `suffixes`, or its folder does not exist.
    """
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{path}: write a name that ends in {' or '.join(suffixes)}")
    try:
        if not path.parent.is_dir():
            raise UserError(f"{path.parent}: there is no such folder")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except UserError:
        raise
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        raise UserError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(mode):  # the finished file takes its place, which would remove a device
        raise UserError(f"{path}: is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}; name a file")


def check_apart(inputs: Iterable[str | Path], outs: Mapping[str, Path]) -> None:
    """Refuse outputs that are one of the inputs or each other, by whatever name: a link to it, or another path.

    Args:
        outs: the files to be written, by the setting that the error names.

    Raises:
        UserError: two of them are one file.
    """
    places: dict[object, str] = {}
    for source in inputs:
        for key in _identities(Path(source)):
            places[key] = f"the source {source}"
    for name, out in outs.items():
        keys = _identities(out)
        for key in keys:
            if key in places:
                raise UserError(f"{name}: {out} is {places[key]}; name another file")
        places |= dict.fromkeys(keys, name)


def _identities(path: Path) -> list[object]:
    """What two names of one file have in common: the path without links, and the file's own number if it exists."""
    identities: list[object] = [os.path.realpath(path)]
    try:
        status = path.stat()
    except (OSError, ValueError):
        return identities
    # devices are no files: they may be written to by several
    return [*identities, (status.st_dev, status.st_ino)] if stat.S_ISREG(status.st_mode) else []


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name to write under. It becomes `path` at the end, unless something failed or it was removed.

    The name cannot be guessed, and the file is new: nobody can have put a link there. It is locked while it is written, so that
    the next run tells the files of a killed one from those of one that is running, and removes them.
    """
    prefix = f".wm-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}-"
    for left in path.parent.glob(f"{prefix}*{_UNFINISHED}"):
        _remove_unlocked(left)
    try:
        descriptor, name = tempfile.mkstemp(_UNFINISHED, prefix, path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    unfinished = Path(name)
    try:
        _lock(descriptor)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(unfinished, 0o666 & ~mask)  # as `open` makes it
        yield unfinished
        if unfinished.exists():
            os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
        os.close(descriptor)


def _remove_unlocked(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return  # a link, or another user's
    try:
        if _lock(descriptor):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # another process has it, or the file system has no locks
    return True
