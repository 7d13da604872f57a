"""Readers of rollout formats, one module each: `matches` tells whether a file has the format, `convert` reads a record."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from gzip import GzipFile
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType

from wm_plugin.data import files, host_dumps
from wm_plugin.data.errors import RowError
from wm_plugin.data.readers import word2world
from wm_plugin.data.readers.base import Complete, Outcome, Reject, convert_rows
from wm_plugin.data.schema import Trajectory
from wm_plugin.errors import UserError, nearest

# Tried in this order: the most specific first.
FORMATS = (
    "own",
    "atif",
    "openhands",
    "minisweagent",
    "responses",
    "otel",
    "tau2",
    "taubench",
    "stabletoolbench",
    "sweagent",
    "scienceworld",
    "agentworldbench",
    "word2world",
    "sharegpt",
    "verl",
    "trl",
    "openai",
    "react",
)

PART = 1 << 23  # bytes: some seconds of work, and little memory
ROWS, CHARACTERS = 1000, 1 << 23  # of a file of dialogues that are read at most to tell its format
OnReject = Callable[[Reject], None]


def read(path: str | Path, format: str = "auto", *, on_reject: OnReject | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a file, in constant memory.

    Args:
        path: a file of JSON lines, a JSON array or a JSON document, also gzipped; or parquet.
        format: one of `FORMATS`, or `auto` to detect it from the file's beginning.
        on_reject: called with every rejected row; None raises on the first one.

    Raises:
        UserError: the file is missing, not JSON or of no known format; or a row was rejected and `on_reject` is None.
    """
    for row in read_rows(Path(path), format):
        if isinstance(row, Trajectory):
            yield row
        elif isinstance(row, Reject):
            if on_reject is None:
                raise UserError(f"{path}, row {row.row}: {row.reason}")
            on_reject(row)


@dataclass(frozen=True)
class Part:
    """A file, or a range of its lines, for one of several processes."""

    file: Path
    format: str = "auto"
    start: int = 0  # bytes
    end: int | None = None
    row: int = 0  # the number of its first row


def read_rows(path: Path, format: str = "auto", *, complete: Complete | None = None) -> Iterator[Outcome]:
    """Yield the trajectories or the rejection of every row of a file.

    Args:
        complete: called with each trajectory; returns the one to take.
    """
    return read_part(Part(path, format), complete=complete)


def parts(path: Path, format: str = "auto", *, size: int = PART) -> Iterator[Part]:
    """Cut a file into parts. An uncompressed file of lines gives ranges of about `size` bytes, any other file one part."""
    head = files.head(path)
    reader = _reader(format, path, head)
    with files.open_file(path) as file:
        zipped = isinstance(file, GzipFile)
    if head.layout != "lines" or zipped or hasattr(reader, "read"):
        yield Part(path, _name(reader))
    else:
        yield from (Part(path, _name(reader), *places) for places in files.ranges(path, size))


def read_part(part: Part, *, complete: Complete | None = None) -> Iterator[Outcome]:
    """Yield the trajectories or the rejection of every row of a part, as `read_rows` does."""
    head = files.head(part.file)
    reader = _reader(part.format, part.file, head)
    if hasattr(reader, "read"):  # its rows are not the file's records
        records, convert = reader.read(part.file, head)
    elif part.end is not None:
        records, convert = files.lines(part.file, part.start, part.end, part.row), reader.convert
    else:
        records, convert = files.records(part.file, head), reader.convert
    if part.end is None:
        records = _some(records)
    completions = [] if complete is None else [complete]
    if _name(reader) in host_dumps.FORMATS:
        completions.append(host_dumps.beside(part.file).complete)
    return convert_rows(records, convert, _name(reader), part.file, completions)


def _some(records: Iterable[files.Record]) -> Iterator[files.Record]:
    """Yield the records of a file; of one that has none, such as `{}`, a record that says so."""
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        yield files.Record(0, error=RowError("the file holds no rows", "empty"))


def detect(path: Path, head: files.Head) -> ModuleType:
    """Return the first reader that matches a file.

    Raises:
        UserError: no reader matches; or the file holds dialogues, and its rows do not tell, or do not agree, who acts in them.
    """
    for name in FORMATS:
        reader = import_module(f"{__name__}.{name}")
        if reader.matches(head):
            return import_module(f"{__name__}.{_of_dialogues(path, head)}") if name == "openai" else reader
    keys = ", ".join(sorted(map(str, head.sample))[:8]) if isinstance(head.sample, dict) else type(head.sample).__name__
    if head.layout == "array" and isinstance(head.sample, dict) and "role" in head.sample:
        raise UserError(f"{path}: a bare list of messages; if mini-swe-agent wrote it, write --format minisweagent")
    raise UserError(
        f"{path}: of no known format (it begins with {keys}); write --format and one of {', '.join(FORMATS)}"
    )


def _of_dialogues(path: Path, head: files.Head) -> str:
    """Tell the format of a file of `messages`: openai, in which the assistant acts, or word2world, in which it is the world.

    A failed episode of Word2World has no mark, so a row alone may fit both; the file's first rows decide.
    """
    verdicts: Counter[str] = Counter()
    characters = 0
    for record in islice(files.records(path, head), ROWS):
        if record.error is None:
            verdicts[word2world.verdict(record.value)] += 1
            characters += word2world.length(record.value)
        if characters > CHARACTERS:
            break
    if verdicts["world"] and not verdicts["acts"]:
        return "word2world"
    if not verdicts["world"] and (verdicts["acts"] or not verdicts["open"]):
        return "openai"
    rows = verdicts.total()
    problem = (
        f"some of its first {rows} rows call tools, in others the assistant marks a success"
        if verdicts["world"]
        else f"no call of a tool and no success mark in its first {rows} row{'s' * (rows != 1)}"
    )
    raise UserError(
        f"{path}: dialogues of the format openai (the assistant acts) or word2world (the user acts, the assistant is the "
        f"world)? {problem}; name one: wm data convert --format openai, or --format word2world"
    )


def _reader(format: str, path: Path, head: files.Head) -> ModuleType:
    if format == "auto":
        return detect(path, head)
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}{nearest(format, FORMATS)}")
    return import_module(f"{__name__}.{format}")


def _name(reader: ModuleType) -> str:
    return reader.__name__.rpartition(".")[2]
