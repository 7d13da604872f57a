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
from wm_plugin.data.readers import word2world
from wm_plugin.data.readers.base import Complete, Outcome, Reject, convert_rows
from wm_plugin.data.schema import Trajectory
from wm_plugin.errors import UserError, nearest

# Tried in this order: the most specific first.
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


def read_rows(path: Path, format: str = "auto", *, complete: Complete | None = None) -> Iterator[Outcome]:
    """Yield the trajectories or the rejection of every row of a file."""
    head = files.head(path)
    return _rows(_reader(format) if format != "auto" else detect(path, head), head, Part(path, format), complete)


@dataclass(frozen=True)
class Part:
    """A file, or a range of its lines, for one of several processes."""

    file: Path
    format: str
    start: int = 0  # bytes
    end: int | None = None
    row: int = 0  # the number of its first row


def parts(path: Path, format: str = "auto", *, size: int = PART) -> Iterator[Part]:
    """Cut a file into parts. An uncompressed file of lines gives ranges of about `size` bytes, any other file one part."""
    head = files.head(path)
    reader = _reader(format) if format != "auto" else detect(path, head)
    name = reader.__name__.rpartition(".")[2]
    with files.open_file(path) as file:
        zipped = isinstance(file, GzipFile)
    if head.layout != "lines" or zipped or hasattr(reader, "read"):
        yield Part(path, name)
    else:
        yield from (Part(path, name, *places) for places in files.ranges(path, size))


def read_part(part: Part, *, complete: Complete | None = None) -> Iterator[Outcome]:
    """Yield the trajectories or the rejection of every row of a part, as from `read_rows`."""
    return _rows(_reader(part.format), files.head(part.file), part, complete)


def _rows(reader: ModuleType, head: files.Head, part: Part, complete: Complete | None) -> Iterator[Outcome]:
    if hasattr(reader, "read"):  # its rows are not the file's records
        records, convert = reader.read(part.file, head)
    elif part.end is not None:
        records, convert = files.lines(part.file, part.start, part.end, part.row), reader.convert
    else:
        records, convert = files.records(part.file, head), reader.convert
    name = reader.__name__.rpartition(".")[2]
    rows = convert_rows(records, convert, name, part.file)
    completions = [] if complete is None else [complete]
    if name in host_dumps.FORMATS:
        completions.append(host_dumps.beside(part.file).complete)
    return _completed(rows, completions) if completions else rows


def _completed(rows: Iterator[Outcome], completions: Iterable[Complete]) -> Iterator[Outcome]:
    for row in rows:
        for each in completions:
            row = row if isinstance(row, Reject) else each(row)
        yield row


def detect(path: Path, head: files.Head) -> ModuleType:
    """Return the first reader that matches a file."""
    for name in FORMATS:
        reader = _reader(name)
        if reader.matches(head):
            return reader if name != "openai" else _reader(_of_dialogues(path, head))
    keys = ", ".join(sorted(map(str, head.sample))[:8]) if isinstance(head.sample, dict) else type(head.sample).__name__
    raise UserError(f"{path}: of no known format (it begins with {keys}); name one of {', '.join(FORMATS)}")


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


def _reader(name: str) -> ModuleType:
    if name not in FORMATS:
        raise UserError(f"there is no format {name!r}{nearest(name, FORMATS)}")
    return import_module(f"wm_plugin.data.readers.{name}")
