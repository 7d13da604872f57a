"""Open output files: check where an output goes, and give it its name once it is complete."""

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from wm_plugin.errors import UserError, shown

PREFIX = ".wm-"  # of the folders of unfinished files
_SUFFIX = ".unfinished"


def check_out(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse an output that cannot be written, before hours of work."""
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{path}: write a name that ends in {' or '.join(suffixes)}")
    try:
        problem = _problem(path)
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        problem = f"cannot be written ({_reason(error)})"
    if problem:
        raise UserError(f"{path}: {problem}")


def _problem(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():  # it is made when the writing begins
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.is_dir():
            return f"{there} is no folder, so nothing can be written into it"
        return "" if _may_write(there) else f"cannot be written (no folder may be made in {there})"
    place = os.path.realpath(folder)
    if place == "/dev" or f"{place}/".startswith("/proc/"):  # the finished file would take the device's place
        return "names of devices and of open files cannot be written to; name a file"
    if not _may_write(folder):
        return "cannot be written (nothing may be written to its folder)"
    if path.exists() and not path.is_file():
        return f"is {'a folder' if path.is_dir() else 'no regular file'}; name a file"
    return "is there, and may not be written over; name another file" if path.exists() and not _may_write(path) else ""


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _reason(error: Exception) -> Any:
    return getattr(error, "strerror", None) or error


def check_derived(path: Path, ours: Callable[[Path], bool], what: str, mend: str) -> None:
    """Refuse an output whose name follows from another one, if the user has something there.

    What an earlier run wrote may be written over, and so may an empty file.
    """
    check_out(path)
    if path.is_symlink():
        raise UserError(f"{path}: is a link, which would be written over; {mend}")
    if path.exists() and path.stat().st_size and not ours(path):
        raise UserError(f"{path}: holds something else than {what}; {mend}")


def check_folder(path: Path) -> None:
    """Refuse a file where a folder is meant."""
    there_is = next((place for place in (path, *path.absolute().parents) if os.path.lexists(place)), path)
    if not there_is.is_dir():
        raise UserError(f"{path}: {'is' if there_is == path else f'{there_is} is'} a file; name a folder")


def check_new_folder(path: Path, name: str) -> None:
    """Refuse a folder that is not empty: its files would be written over or taken for a part of this run."""
    try:
        left = [entry for entry in os.listdir(path) if not entry.startswith(PREFIX)]  # these a killed run left
    except FileNotFoundError:
        left = [path.name] if path.is_symlink() else []
    except (OSError, ValueError) as error:  # a file, or no name of a folder
        raise UserError(f"{name}: {path} cannot be used ({_reason(error)}); name a new folder") from None
    if left:
        raise UserError(f"{name}: {path} is not empty ({shown(left[0])} is there); name a new folder")


def check_apart(inputs: Iterable[str | Path | None], outs: Mapping[str, Path]) -> None:
    """Refuse outputs that are one of the inputs or each other, by whatever name: a link to it, or another path.

    Args:
        inputs: files, and folders of files, such as a tokenizer's. None and names that are no files are skipped.
        outs: the files to be written, by the setting that the error names.
    """
    places: dict[object, str] = {}
    for source in inputs:
        with suppress(OSError, ValueError):  # not a file's name
            path = Path(source or "")
            for file in () if source is None else sorted(path.iterdir()) if path.is_dir() else (path,):
                places |= dict.fromkeys(_identities(file), f"the source {file}")
    for name, out in outs.items():
        try:
            keys = _identities(out)
        except (OSError, ValueError) as error:  # the current folder is gone
            raise UserError(f"{name}: cannot tell where {out} lies ({_reason(error)}); write a whole path") from None
        for key in keys:
            if key in places:
                raise UserError(f"{name}: {out} is {places[key]}; name another file")
        places |= dict.fromkeys(keys, name)


def _identities(path: Path) -> list[object]:
    """Return what two names of one file have in common: the path without links, and a regular file's number."""
    identities: list[object] = [os.path.realpath(path)]
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):  # several outputs may be written to one device
            identities.append((status.st_dev, status.st_ino))
    return identities


def files_in(settings: Any) -> Iterator[str]:
    """Yield the files that settings name, such as the arguments of a reward: a prompt of one's own, a cache."""
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list):
        for setting in settings:
            yield from files_in(setting)
    elif isinstance(settings, str):
        with suppress(OSError, ValueError):  # not a file's name
            if Path(settings).is_file():
                yield settings


@contextmanager
def atomic(
    path: Path, keep: Callable[[], bool] = lambda: True, check: Callable[[], object] = lambda: None
) -> Iterator[Path]:
    """Give a temporary name to write under. It becomes `path` at the end, unless something failed.

    Args:
        keep: called at the end; if it returns False, no file is kept.
        check: called before the file takes the place of another, hours after the first check; raises where that one must stay.
    """
    with work_folder(path) as folder:
        unfinished = folder / "file"
        unfinished.touch()
        yield unfinished
        if keep():
            check()
            os.replace(unfinished, path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Do what `atomic` does, for a folder that does not exist."""
    with work_folder(path) as folder:
        unfinished = folder / "folder"
        unfinished.mkdir()
        yield unfinished
        os.replace(unfinished, path)


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Make a new folder beside `path` for this user alone, and remove it at the end.

    It is locked meanwhile: the next run removes the unlocked folders that a killed one left.
    """
    prefix = f"{PREFIX}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}-"
    # named before it is made: an interrupt may come in between
    folder = path.parent / f"{prefix}{uuid4().hex}{_SUFFIX}"
    descriptor = None
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for left in path.parent.glob(f"{prefix}*{_SUFFIX}"):
                _remove_left(left)
            folder.mkdir(mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _remove_left(folder: Path) -> None:
    """Remove a folder unless a run has it locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # a link, a file, or another user's
    try:
        with suppress(OSError):  # another process has it, or the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text, completely or not at all. Half surrogate pairs, which decoded tokens may hold, become question marks."""
    with atomic(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", errors="replace")
