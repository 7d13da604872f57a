"""Files as streams of JSON records. A broken record is reported and does not end the stream.

There are four layouts: a record per line; an array of records; a document with the records at a place inside it; parquet.
"""

import gzip
import json
import math
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, Literal

import ijson

from wm_plugin.data import parquet
from wm_plugin.data.errors import RowError
from wm_plugin.errors import UserError
from wm_plugin.untrusted import LARGEST, LEVELS, BoundsError, deeper, loads

Layout = Literal["lines", "array", "document", "one", "parquet"]
_HEAD = 1 << 16  # bytes by which `head` tells the layout
_EVENTS = 20_000  # of a document's parser, for the same purpose
_ROWS = 20  # of an array, for the same purpose
_BUFFER = 1 << 22  # bytes; ijson scans a long string from its start for every buffer
_PLACE = 2  # levels of a document above its records, at most
_KEY = 100  # characters; the names of places are shorter
_RAW = 1 << 10  # bytes of a very long line that are kept with its rejection
_UNREADABLE = (OSError, EOFError, zlib.error)
BROKEN = (*_UNREADABLE, ijson.JSONError, UnicodeDecodeError, RecursionError)  # what a broken document raises


@dataclass(frozen=True)
class Head:
    """The beginning of a file.

    Attributes:
        layout: "one" if the file is a single line, which may be a record or a whole document.
        sample: the first record. Of a long document over several lines only the top-level keys: plain values are kept, objects
            are reduced to their keys, lists are empty.
    """

    layout: Layout
    sample: Any

    @property
    def keys(self) -> dict[str, Any]:
        """The top-level keys of a file that may be a document; empty for other layouts."""
        return self.sample if self.layout in ("document", "one") and isinstance(self.sample, dict) else {}


@dataclass(frozen=True)
class Record:
    """One record, or why it could not be read."""

    row: int  # 0-based
    value: Any = None
    error: RowError | None = None
    raw: str = ""  # the text of a record that could not be parsed


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading, behind its byte order mark; gzip is decompressed."""
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a device need not end, a pipe is read only once
            raise UserError(f"{path}: a device or a pipe; it is read more than once, so write its text to a file")
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        opened: IO[bytes] = gzip.open(path) if zipped else path.open("rb", _HEAD)  # type: ignore[assignment]  # noqa: SIM115
        if opened.read(3) != b"\xef\xbb\xbf":
            opened.seek(0)
        return opened
    except _UNREADABLE as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def head(path: Path) -> Head:
    """Tell the layout and the first record of a file.

    Raises:
        UserError: the file is empty, or neither JSON nor parquet.
    """
    if path.suffix == ".parquet":
        rows = islice(_rows(path), _ROWS)
        first_row = next(rows, None)
        if first_row is None:
            raise UserError(f"{path}: the file is empty")
        return Head(
            "parquet", first_row.value or next((row.value for row in rows if row.value), {})
        )  # it may be too large
    start, whole = _beginning(path)
    text = start.lstrip(b" \t\r\n")
    if not text:
        raise UserError(f"{path}: the file is empty")
    line, _, rest = text.partition(b"\n")
    record, alone = _loads(line), not rest.strip()
    if text[:1] == b"[":
        if not alone and (later := _without_commas(path)):
            return Head("lines", later)
        first = _first(path) if alone or not isinstance(record, list) else None
        later = _later(path) if first is None else None
        return Head("lines", later) if later else Head("array", first)
    if text[:1] != b"{":
        if later := _later(path):
            return Head("lines", later)
        raise UserError(f"{path}: not JSON (it begins with {text[:20]!r}); known are .json, .jsonl, .traj and .parquet")
    if isinstance(record, dict):
        return Head("one", record) if alone else Head("lines", record or _later(path) or record)
    keys, broken = _keys(path)
    # the parser may not have come to the end of a long first line; if that is a row cut off, one of the next lines is whole
    if (broken or len(line) > _EVENTS) and (later := _later(path, None if broken else _ROWS)):
        return Head("lines", later)
    document = _loads(text) if whole else None  # a small document is its own sample
    return Head("document", document if isinstance(document, dict) else keys)


def _beginning(path: Path) -> tuple[bytes, bool]:
    """Return a file's beginning behind blank lines, with a whole line if there is one, and whether that is all of the file."""
    try:
        with open_file(path) as file:
            start = file.read(_HEAD)
            while start.isspace() and (more := file.read(_HEAD)):
                start = more
            full = len(start) == _HEAD
            if full and b"\n" not in start.lstrip():  # a line longer than LARGEST is a document
                start += file.readline(LARGEST)
                start += file.read(_HEAD)
            return start, not full
    except _UNREADABLE as error:
        raise UserError(f"{path}: {error}") from None


def records(path: Path, head: Head) -> Iterator[Record]:
    """Yield the records of a file of lines, of an array, of documents one after the other, or of parquet."""
    if head.layout == "parquet":
        return _rows(path)
    if head.layout == "array":
        return items(path, "item")
    return items(path, "") if head.layout == "document" else lines(path)


def _rows(path: Path) -> Iterator[Record]:
    for number, value in enumerate(parquet.rows(path)):
        yield Record(number, error=value) if isinstance(value, RowError) else Record(number, value)


def ranges(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """Cut a file of lines into ranges of about `size` bytes that end with a line: (start, end, number of the first row)."""
    with open_file(path) as file:
        start = end = file.tell()
        first = row = 0
        for line, length in _bounded(file):
            end += length
            row += not line.isspace()
            if end - start >= size:
                yield start, end, first
                start, first = end, row
        if end > start:
            yield start, end, first


def _bounded(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file and their lengths. Of one that is too long only a beginning is kept that is too long to parse."""
    while line := file.readline(LARGEST + 1):
        length = len(line)
        if length > LARGEST and not line.endswith(b"\n"):
            more = line
            while more and not more.endswith(b"\n"):
                more = file.readline(_BUFFER)
                length += len(more)
                if line.isspace() and more and not more.isspace():
                    line = line[:-1] + b"?"  # the line as a whole is not empty
        yield line, length


def whole(path: Path) -> Record:
    """Return the single record of a file that is one document."""
    with open_file(path) as file:
        try:
            return parse(0, file.read(LARGEST + 1))
        except _UNREADABLE as error:
            return Record(0, error=_broken(error))


def lines(path: Path, start: int = 0, end: int | None = None, row: int = 0) -> Iterator[Record]:
    """Yield the records of a file of lines, or of one of its `ranges`."""
    with open_file(path) as file:
        if start:
            file.seek(start)
        left = math.inf if end is None else end - start
        try:
            for line, length in _bounded(file):
                left -= length
                if not line.isspace():
                    yield parse(row, line)
                    row += 1
                if left <= 0:
                    return
        except _UNREADABLE as error:
            yield Record(row, error=_broken(error))


def items(path: Path, place: str) -> Iterator[Record]:
    """Yield the records at `place` of a document, in ijson's notation (`item` for an array's)."""
    return (record for _, record in _stream(path, place, keyed=False))


def pairs(path: Path, place: str = "") -> Iterator[tuple[str, Record]]:
    """Yield the keys of a document's object, each with its record."""
    return _stream(path, place, keyed=True)


def _stream(path: Path, place: str, keyed: bool) -> Iterator[tuple[str, Record]]:
    row = 0
    with open_file(path) as file:
        try:
            parsed = events(file, multiple_values=not place and not keyed)
            found = ijson.kvitems(parsed, place) if keyed else (("", value) for value in ijson.items(parsed, place))
            for key, value in found:
                yield key, _checked(row, value)
                row += 1
            return
        except BROKEN as error:
            problems: list[Exception] = [error]
    document = None
    try:
        document = _load_whole(path)
    except BoundsError as error:
        problems.append(error)
    for key in filter(None, place.split(".")):
        if key != "item":
            document = document.get(key) if isinstance(document, dict) else None
    entries: list[tuple[str, Any]] | None = None
    if keyed:
        entries = list(document.items()) if isinstance(document, dict) else None
    elif document is not None:
        entries = [("", value) for value in (document if isinstance(document, list) and place else [document])]
    if entries is None:
        yield "", Record(row, error=_broken(*problems))
    else:
        yield from ((key, _checked(number, value)) for number, (key, value) in enumerate(entries[row:], row))


def events(file: IO[bytes], multiple_values: bool = False) -> Iterator[tuple[str | None, str, Any]]:
    """Yield the events of `ijson.parse`, in linear time and memory: it writes the whole path of keys into every prefix.

    Prefixes are made only where records may be, and of short keys. What is deeper than a record may be is left out: the record
    is too deep without it.
    """
    places: list[str | None] = ["", *[None] * (_PLACE + 1)]  # the prefix of a value in so many objects and lists
    depth = 0
    for event, value in ijson.basic_parse(file, use_float=True, buf_size=_BUFFER, multiple_values=multiple_values):
        if event in ("end_map", "end_array"):
            depth -= 1
        place = places[min(depth - (event == "map_key"), _PLACE + 1)]
        if depth <= _PLACE + LEVELS:
            yield place, event, value
        if event in ("start_map", "start_array"):
            depth += 1
        if event in ("map_key", "start_array") and depth <= _PLACE:
            name = value[:_KEY] if event == "map_key" else "item"
            places[depth] = name if depth == 1 else f"{place}.{name}"


def _load_whole(path: Path) -> Any:
    """Parse a whole document with `loads`, which takes NaN; None if it is too large or broken.

    Raises:
        BoundsError: an integer is too long, or the document too deep.
    """
    with open_file(path) as file:
        try:
            data = file.read(LARGEST + 1)
            return None if len(data) > LARGEST else loads(data, levels=1000)  # its rows are checked one by one
        except BoundsError:
            raise
        except (*BROKEN, ValueError):
            return None


def _checked(row: int, value: Any) -> Record:
    if not deeper(value, LEVELS):
        return Record(row, value)
    return Record(row, error=RowError(f"nested more than {LEVELS} levels deep", "out of bounds"))


def _broken(*errors: Exception) -> RowError:
    reasons = "; ".join(map(_line, errors))
    return RowError(f"the document breaks off here ({reasons}); what follows is not read", "broken document")


def parse(row: int, line: bytes) -> Record:
    """Parse a line; what cannot be parsed becomes a record with an error."""
    try:
        return Record(row, loads(line))
    except UnicodeDecodeError as error:
        reason, kind = f"not UTF-8 at byte {error.start}", "not UTF-8"
    except json.JSONDecodeError as error:
        reason, kind = f"not JSON: {error.msg} at character {error.pos}", "not JSON"
    except ValueError as error:
        reason, kind = str(error), "out of bounds"
    line = line[:_RAW] if len(line) > LARGEST // 8 else line  # a rejected row must be read as one line, too
    return Record(row, error=RowError(reason, kind), raw=line.decode(errors="backslashreplace").rstrip("\r\n"))


def _loads(text: bytes) -> Any:
    try:
        return loads(text.decode(errors="replace"))
    except ValueError:
        return None


def _peek(path: Path) -> Iterator[bytes]:
    """Yield a file's lines as far as they can be read; reading the records reports the error."""
    with open_file(path) as file, suppress(*_UNREADABLE):
        yield from (line for line, _ in _bounded(file))


def _later(path: Path, count: int | None = None) -> dict[str, Any] | None:
    """Return the first object with keys that is a line, of so many, for files whose first line is broken or {}."""
    values = (_loads(line) for line in islice(_peek(path), count) if line[:1] == b"{")
    return next((value for value in values if isinstance(value, dict) and value), None)


def _without_commas(path: Path) -> dict[str, Any] | None:
    """Return the last of the first rows, if most of them are lines and two follow each other without a comma: no array."""
    some = list(islice((line.strip() for line in _peek(path) if not line.isspace()), 1, _ROWS + 1))
    rows = [_loads(line) if line[:1] == b"{" else None for line in some]
    plain = sum(isinstance(row, dict) for row in rows)
    listed = sum(line[:1] + line[-1:] == b"{," and isinstance(_loads(line[:-1]), dict) for line in some)
    following = [row for before, row in pairwise(rows) if isinstance(before, dict) and isinstance(row, dict)]
    return following[-1] if following and plain > listed else None


def _first(path: Path) -> Any:
    """Return an array's first object with a key. Other values before it are skipped: a broken row does not decide the format."""
    rows = [record.value for record in islice(items(path, "item"), _ROWS) if isinstance(record.value, dict)]
    return next(filter(None, rows), rows[0] if rows else None)


def _keys(path: Path) -> tuple[dict[str, Any], bool]:
    """Return a document's top-level keys within the first events of its parser, and whether it is broken there."""
    keys: dict[str, Any] = {}
    key = ""
    with open_file(path) as file:
        try:
            for place, event, value in islice(events(file), _EVENTS):
                if place == "" and event == "map_key":
                    key = value
                    keys[key] = None
                elif key and place == key:
                    if event == "start_map":
                        keys[key] = {}
                    elif event == "map_key":
                        keys[key][value] = None
                    elif event == "start_array":
                        keys[key] = []
                    elif event not in ("end_map", "end_array"):
                        keys[key] = value
        except BROKEN:
            return keys, True  # reading the records reports the error
    return keys, False


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
