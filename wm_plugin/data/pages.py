"""What a Parquet file is made of: where the pages of its columns lie, and what they take.

pyarrow has no safe way to ask for it: some footers that are damaged end the process, and the sizes that a footer tells may be
wrong. Those in front of each page are what its values are decoded by.

Both are written in Thrift's compact protocol: fields with numbers, of which a table here names the few that are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from wm_plugin.untrusted import BoundsError

DICTIONARY_PAGE = 2  # a page's kind
_END = b"PAR1"
_TRUE, _FALSE, _BYTE, _INT16, _INT32, _INT64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_BITS = {_INT16: 32, _INT32: 32, _INT64: 64}
_LEVELS = 64  # of a structure, as in Thrift's own parser
_LARGEST_FOOTER = 1 << 26  # bytes
# Of the lists in a footer, by what pyarrow makes of them: about a thousand bytes of a group's column.
_ITEMS = 1 << 23
_WANTED_ITEM, _STRUCTURE_ITEM = 32, 8
_HEADER = 1 << 10  # bytes of a page's header that are read at first
_LARGEST_HEADER = 1 << 24
# {field: its kind, or the fields of its structure, or of those in its list}. pyarrow passes over fields of other kinds.
_CHUNK = {4: _INT32, 5: _INT64, 7: _INT64, 9: _INT64, 11: _INT64}
_FOOTER = {4: {1: {3: _CHUNK}, 3: _INT64}}
_DATA_HEADER = {1: _INT32, 2: _INT32}
_PAGE = {1: _INT32, 2: _INT32, 3: _INT32, 5: _DATA_HEADER, 7: _DATA_HEADER, 8: {1: _INT32, 4: _INT32}}
# {a page's kind: the field of its own header, and there that of the encoding}. Pages of other kinds are passed over.
_HEADERS = {0: (5, 2), DICTIONARY_PAGE: (7, 2), 3: (8, 4)}


class BrokenError(ValueError):
    """Bytes that are no Parquet file."""


@dataclass(frozen=True)
class Chunk:
    """The values of a column in a group of rows."""

    start: int
    end: int
    values: int


@dataclass(frozen=True)
class Group:
    """A group of rows."""

    rows: int
    chunks: list[Chunk]


@dataclass(frozen=True)
class Page:
    """A part of a column's values.

    Attributes:
        size: bytes, decompressed.
        kind: `DICTIONARY_PAGE`, or another.
        encoding: of its values; 0 where a page has none.
    """

    start: int
    size: int
    values: int
    kind: int
    encoding: int


def groups(file: IO[bytes], size: int) -> list[Group]:
    """The groups of rows of a file of so many bytes.

    Raises:
        BrokenError: it has no footer that can be read.
        BoundsError: its footer is too large, or lists too much.
    """
    file.seek(max(size - 8, 0))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != _END or length > size - 8:
        raise BrokenError("there is no footer")
    if length > _LARGEST_FOOTER:
        raise BoundsError(f"a footer of more than {_LARGEST_FOOTER:,} bytes")
    file.seek(size - 8 - length)
    footer = _Structures(file.read(length)).read(_FOOTER)
    if any(group.get(3, 0) < 0 for group in footer.get(4, [])):
        raise BrokenError("less than no rows")
    return [
        Group(group.get(3, 0), [_chunk(column.get(3, {}), size) for column in group.get(1, [])])
        for group in footer.get(4, [])
    ]


def _chunk(about: dict[int, Any], size: int) -> Chunk:
    start, length = about.get(9, 0), about.get(7, 0)
    if 0 < about.get(11, 0) < start:
        start = about[11]  # the dictionary is first
    if about.get(5, 0) and (start < 0 or length < 0 or start + length > size):
        raise BrokenError("a column lies outside of the file")
    return Chunk(start, start + length, about.get(5, 0))


def pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    """The pages of a column, as far as pyarrow reads them.

    Raises:
        BrokenError: one cannot be read.
    """
    start, values = chunk.start, 0
    while start < chunk.end and values < chunk.values:
        header, length = _header(file, start, chunk.end)
        kind, size, compressed = (header.get(field, 0) for field in (1, 2, 3))
        own, encoding = _HEADERS.get(kind, (0, 0))
        about = header.get(own, {})
        count = about.get(1, 0)
        if min(size, compressed, count) < 0:
            raise BrokenError("a page of less than no bytes")
        yield Page(start, max(size, compressed), count, kind, about.get(encoding, 0))
        values += count if kind != DICTIONARY_PAGE else 0
        start += length + compressed
    if values < chunk.values:  # pyarrow may look for the rest where the column has ended
        raise BrokenError("a column without some of its values")


def _header(file: IO[bytes], start: int, end: int) -> tuple[dict[int, Any], int]:
    size = _HEADER
    while True:
        file.seek(start)
        structures = _Structures(file.read(min(size, end - start)))
        try:
            return structures.read(_PAGE), structures.place
        except BrokenError:  # it may be longer
            size *= 4
            if size > _LARGEST_HEADER or size >= 4 * (end - start):
                raise


class _Structures:
    """A structure in Thrift's compact protocol, and those in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0
        self._items = 0

    def read(self, wanted: dict[int, Any]) -> dict[int, Any]:
        """The wanted fields of the structure that begins here.

        Raises:
            BrokenError: there is none, or one of them is there twice or is of another kind.
        """
        try:
            return self._structure(wanted, 0)
        except IndexError:
            raise BrokenError("it breaks off") from None

    def _structure(self, wanted: dict[int, Any], depth: int) -> dict[int, Any]:
        if depth > _LEVELS:
            raise BrokenError("nested too deeply")
        values: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            kind = head & 15
            field = _field(field + (head >> 4) if head >> 4 else self._integer(32))
            if field not in wanted:
                self._skip(kind, depth + 1)
                continue
            if field in values:
                raise BrokenError("a field is there twice")
            inner = wanted[field]
            if inner == kind:
                values[field] = self._integer(_BITS[kind])
            elif isinstance(inner, dict) and kind == _STRUCT:
                values[field] = self._structure(inner, depth + 1)
            elif isinstance(inner, dict) and kind == _LIST:
                count, element = self._list()
                if element != _STRUCT:
                    raise BrokenError("a list of other values")
                self._add(count * _WANTED_ITEM)
                values[field] = [self._structure(inner, depth + 1) for _ in range(count)]
            else:
                raise BrokenError("a field of another kind")
        return values

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _LEVELS:
            raise BrokenError("nested too deeply")
        if kind in _BITS:
            self._varint()
        elif kind == _BYTE:
            self.place += 1
        elif kind == _DOUBLE:
            self.place += 8
        elif kind == _BINARY:
            length = self._varint()
            self.place += length
        elif kind in (_LIST, _SET):
            count, element = self._list()
            self._add(count * _STRUCTURE_ITEM if element == _STRUCT else count)
            for _ in range(count):
                self._skip(_BYTE if element in (_TRUE, _FALSE) else element, depth + 1)
        elif kind == _MAP:
            count = self._count(self._varint())
            kinds = self._byte() if count else 0
            for _ in range(count):
                for element in (kinds >> 4, kinds & 15):
                    self._skip(_BYTE if element in (_TRUE, _FALSE) else element, depth + 1)
        elif kind == _STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._varint()
                self._skip(head & 15, depth + 1)
        elif kind not in (_TRUE, _FALSE):
            raise BrokenError(f"there is no kind {kind}")

    def _add(self, items: int) -> None:
        self._items += items
        if self._items > _ITEMS:
            raise BoundsError("a footer that lists too much; write larger groups of rows")

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        return self._count(head >> 4 if head < 0xF0 else self._varint()), head & 15

    def _count(self, count: int) -> int:
        if count > len(self._data) - self.place:  # each takes a byte at least
            raise BrokenError("it breaks off")
        return count

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _varint(self) -> int:
        number = shift = 0
        while shift < 70:
            byte = self._data[self.place]
            self.place += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise BrokenError("a number of more than 64 bits")

    def _integer(self, bits: int) -> int:
        """A signed number; what has more bits is cut off, as in Thrift's own parser."""
        number = self._varint() & ((1 << bits) - 1)
        return (number >> 1) ^ -(number & 1)


def _field(number: int) -> int:
    """A field's number, of which Thrift's own parser keeps 16 bits."""
    return (number + 0x8000) % 0x10000 - 0x8000
