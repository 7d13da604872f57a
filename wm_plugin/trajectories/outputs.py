"""Opens output files: the one place that checks where an output goes and gives it its name once it is complete."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wm_plugin.errors import UserError


def check_out(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuse an output that cannot be written, before hours of work.

    Raises:
        UserError: the name does not end in one of `suffixes`, or its folder does not exist.
    """
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{path}: write a name that ends in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: there is no such folder")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name to write under. It becomes `path` at the end, unless something failed or it was removed."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        if unfinished.exists():
            os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
