"""Formats of rollouts, one file each: whether a file is of the format, and its trajectories."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from wm_plugin.errors import UserError, nearest
from wm_plugin.trajectories import files
from wm_plugin.trajectories.readers import own
from wm_plugin.trajectories.readers.base import Found, Reject
from wm_plugin.trajectories.schema import Trajectory

# In the order in which they are tried: the most particular first.
FORMATS = (
    "own",
    "tau2",
    "taubench",
    "stabletoolbench",
    "sweagent",
    "scienceworld",
    "agentworldbench",
    "word2world",
    "sharegpt",
    "openai",
    "react",
)

OnReject = Callable[[Reject], None]


def read(path: str | Path, format: str = "auto", *, on_reject: OnReject | None = None) -> Iterator[Trajectory]:
    """The trajectories of a file, one by one, in constant memory.

    Args:
        path: a file of JSON lines, a JSON array or a JSON document, also gzipped; or our own parquet.
        format: one of `FORMATS`, or `auto` to tell by the file's beginning.
        on_reject: called with every row that was left out; None: the first one raises.

    Raises:
        UserError: the file is missing, is no JSON, or of no known format; or a row was rejected and nobody asked for it.
    """
    for found in read_rows(Path(path), format):
        if isinstance(found, Trajectory):
            yield found
        elif on_reject is None:
            raise UserError(f"{path}, row {found.row}: {found.reason}")
        else:
            on_reject(found)


def read_rows(path: Path, format: str = "auto") -> Iterator[Found]:
    """Every row of a file as its trajectories or its rejection."""
    if path.suffix == ".parquet":
        return own.read_parquet(path)
    head = files.head(path)
    reader = _reader(format) if format != "auto" else detect(path, head)
    rows: Iterator[Found] = reader.read(path, head)
    return rows


def detect(path: Path, head: files.Head) -> ModuleType:
    """The reader of a file.

    Raises:
        UserError: none knows it.
    """
    for name in FORMATS:
        reader = _reader(name)
        if reader.matches(head):
            return reader
    keys = ", ".join(sorted(map(str, head.sample))[:8]) if isinstance(head.sample, dict) else type(head.sample).__name__
    raise UserError(f"{path}: of no known format (it begins with {keys}); name one of {', '.join(FORMATS)}")


def _reader(name: str) -> ModuleType:
    if name not in FORMATS:
        raise UserError(f"there is no format {name!r}{nearest(name, FORMATS)}")
    return import_module(f"wm_plugin.trajectories.readers.{name}")
