"""Parquet files as streams of JSON records. A row is an object with the columns as its keys."""

import io
import os
from bisect import bisect_right
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from wm_plugin.data import pages
from wm_plugin.data.errors import RowError
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.untrusted import LARGEST, LEVELS, BoundsError

_ROWS = 64  # in memory at once; a row may hold a whole rollout
_NUMBER = 8  # bytes
_LEVEL = 4  # bytes of memory that tell where in a row's lists a value is
_AT_ONCE = 1024  # values of a column that are decoded together, however few rows are asked for
_OBJECT = 64  # bytes that Python takes for an empty list; in the file it may take none
_VALUE = 32  # and for a number; in all, a row has no more than `untrusted.VALUES`
_BUFFER = 1 << 16  # bytes of a column that are read ahead
_TOO_LARGE = f"a row of more than {LARGEST:,} bytes"
# A text can be there once for any number of rows, so that a small file could fill a disk. No rollouts repeat that much: those
# that share a prompt of 10,000 characters have more than a byte of their own each.
_RATIO = 10_000  # bytes of rows to a byte of the file
# Of what is decoded at once. A page of long texts may hold a thousand of them, and texts are hardly compressed more than this.
_DENSE = 64  # bytes to a byte of the file
# PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY and BYTE_STREAM_SPLIT. In others a few bytes can be values of
# any length, which are decoded at once.
_ENCODINGS = {0, 2, 3, 5, 8, 9}
_PAGES = 1 << 18  # of a group of rows
_SCHEMA = b"ARROW:schema"


def rows(path: Path, columns: Container[str] | None = None) -> Iterator[dict[str, Any] | RowError]:
    """The rows of a file, without nulls; an error in place of a row that is too large.

    Args:
        columns: the columns to read; None reads all.

    Raises:
        UserError, RowError: as `tables`.
    """
    pyarrow, _ = pyarrow_modules()
    for table in tables(path, columns):
        if isinstance(table, RowError):
            yield table
        else:
            with _breaking_off(pyarrow):
                values = [_without_nulls(value) for value in _objects(table, pyarrow)]
            yield from values


def tables(path: Path, columns: Container[str] | None = None) -> Iterator[Any]:
    """The rows of a file as tables of pyarrow, of a few rows each; a `RowError` in place of a row that is too large.

    Every Parquet file that somebody else wrote is read here.

    Args:
        columns: the columns to read; None reads all.

    Raises:
        UserError: it is not a parquet file, its columns are nested too deeply, or their names are not UTF-8 or not unique.
        RowError: the file is broken from this row on, holds rows there that are too large to be told apart, or repeats its
            values more often than any rollouts do.
    """
    pyarrow, parquet = pyarrow_modules()
    try:
        source = _Source(path)
    except (OSError, ValueError) as error:  # a path may be no UTF-8, either
        raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
    with source:
        try:
            groups = pages.groups(source, source.size)  # before pyarrow reads any of it
            file = parquet.ParquetFile(source)
            if _has_fixed_lists(list(file.schema_arrow), pyarrow):
                source.hides_schema = True
                file = parquet.ParquetFile(source)
                if _has_fixed_lists(list(file.schema_arrow), pyarrow):
                    raise UserError(f"{path}: has lists of a fixed size; write others")
            schema = file.schema_arrow
            if _deeper([field.type for field in schema], LEVELS):
                raise UserError(f"{path}: its columns are nested more than {LEVELS} levels deep")
            if (name := _doubled(list(schema))) is not None:
                raise UserError(f"{path}: two columns are named {shown(name)}; rename one of them")
            leaves = [_Leaf(file.schema.column(place)) for place in range(len(file.schema))]
            # A text may be there once, for many rows; as a dictionary it stays so until we know what the row would take.
            texts = [place for place, leaf in enumerate(leaves) if leaf.is_text]
            file = parquet.ParquetFile(source, read_dictionary=texts, pre_buffer=False, buffer_size=_BUFFER)
            source.hides_schema = False
        except UnicodeDecodeError:
            raise UserError(f"{path}: the name of a column is not UTF-8; rename it") from None
        except UserError:
            raise
        except (OSError, ValueError, MemoryError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
        names = [name for name in schema.names if columns is None or name in columns]
        begins = tuple(names)  # a leaf's path begins with the column's name, which may have points of its own
        read = {place: leaf for place, leaf in enumerate(leaves) if columns is None or leaf.path.startswith(begins)}
        schema = pyarrow.schema([schema.field(name) for name in names])
        left = max(_RATIO * source.size, 4 * LARGEST)  # bytes of rows that may follow
        with _breaking_off(pyarrow):
            for number, group in enumerate(groups):
                size = source.enter(group, read)
                row = -(-size // max(group.rows, 1))
                if row > LARGEST:
                    raise RowError(f"{_TOO_LARGE}; what follows it is not read", "out of bounds")
                if size > left:
                    raise RowError(_too_often(source.size), "out of bounds")
                for batch in _batches(file, source, number, names, min(_ROWS, LARGEST // max(row, 1))):
                    whole = _size(batch.to_struct_array(), pyarrow)
                    fits = whole <= LARGEST
                    for piece in [batch] if fits else (batch.slice(place, 1) for place in range(batch.num_rows)):
                        size = whole if fits else _size(piece.to_struct_array(), pyarrow)
                        left -= size
                        if left < 0:
                            raise RowError(_too_often(source.size), "out of bounds")
                        if size > LARGEST:
                            yield RowError(_TOO_LARGE, "out of bounds")
                        else:
                            # a slice of lists would be cast with all that is in the batch's lists
                            yield _cast(piece if fits else piece.take([0]), schema, pyarrow)


def _batches(file: Any, source: "_Source", group: int, names: list[str], count: int) -> Iterator[Any]:
    """The rows of a group, a few at a time; one by one from where some are too large together."""
    done = 0
    try:
        for batch in file.iter_batches(count, row_groups=[group], columns=names):
            source.begin()
            done += batch.num_rows
            yield batch
        return
    except (OSError, ValueError):
        if source.error is None:
            raise
    try:
        source.restart()
        for place, batch in enumerate(file.iter_batches(1, row_groups=[group], columns=names)):
            source.begin()
            if place >= done:
                yield batch
    except (OSError, ValueError):
        if source.error is None:
            raise
        raise source.error from None


def _cast(batch: Any, schema: Any, pyarrow: Any) -> Any:
    table = pyarrow.Table.from_batches([batch])
    # No dictionary becomes a view; its rows are the same. Nor does one in which texts are long, by the mean of their lengths.
    with suppress(pyarrow.ArrowNotImplementedError, MemoryError):
        return table.cast(schema)
    return table


@contextmanager
def _breaking_off(pyarrow: Any) -> Iterator[None]:
    """Whatever pyarrow raises is that the file is broken from here on."""
    try:
        yield
    except RowError:
        raise
    except BoundsError as error:
        raise RowError(str(error), "out of bounds") from None
    except (OSError, ValueError, MemoryError, RecursionError, pyarrow.ArrowException) as error:
        raise RowError(f"the file breaks off here ({_line(error)})", "broken document") from None


class _Leaf:
    """A column of plain values, which may lie in lists and objects."""

    def __init__(self, column: Any) -> None:
        self.path = column.path
        self.in_lists = column.max_repetition_level > 0
        self.is_text = column.physical_type == "BYTE_ARRAY" and column.converted_type != "DECIMAL"
        self.is_bytes = column.physical_type == "BYTE_ARRAY"
        # A number that is repeated takes no place in the file, and neither does a value of a fixed length.
        self.width = max(_NUMBER, column.length or 0)


class _Source(io.FileIO):
    """A file that pyarrow reads, and that refuses to go on where what is decoded at once takes too much.

    A row of lists is decoded whole, however large it is, and nothing in the file tells where it ends.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = os.fstat(self.fileno()).st_size
        self.error: RowError | None = None
        # Not to be read from the footer: what pyarrow wrote there about its own types. A null of a list of a fixed size takes as
        # much memory as a list, so that a few bytes can take any; without it, such lists are read as any others.
        self.hides_schema = False
        self._most = min(max(4 * LARGEST, _DENSE * self.size), 16 * LARGEST)
        self._starts: list[int] = []  # of the pages of a group
        self._pages: dict[int, tuple[int, int]] = {}  # by their start: whose they are, and what they take in memory
        self._held: dict[int, int] = {}  # bytes, by column: of all pages that were read for the rows that are next
        self._last: dict[int, int] = {}  # of these, of the last page

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        following = bisect_right(self._starts, start)
        if following < len(self._starts):  # no page that is not asked for, which may be small here and large in memory
            size = (
                self._starts[following] - start
                if size is None or size < 0
                else min(size, self._starts[following] - start)
            )
        if start in self._pages:
            owner, taken = self._pages[start]
            self._held[owner] = self._held.get(owner, 0) + taken
            self._last[owner] = taken
        if sum(self._held.values()) > self._most:
            self.error = RowError(
                f"pages of more than {self._most:,} bytes for a row; what follows is not read", "out of bounds"
            )
            raise self.error
        data = super().read(size) or b""
        return data.replace(_SCHEMA, bytes(len(_SCHEMA))) if self.hides_schema else data

    def enter(self, group: pages.Group, leaves: dict[int, _Leaf]) -> int:
        """Bytes of a group's columns: before anything is read of them.

        Raises:
            ValueError: its pages cannot be read.
        """
        self._pages, self._starts = {}, []
        self.restart()
        if len(group.chunks) <= max(leaves, default=-1):
            raise pages.BrokenError("a column is missing")
        # of a column without values, any place is told
        chunks = sorted((chunk.start, chunk.end) for place in leaves if (chunk := group.chunks[place]).values)
        if any(end > start for (_, end), (start, _) in pairwise(chunks)):
            raise pages.BrokenError("two columns are at one place")
        size, by_start = 0, {}
        for place, leaf in leaves.items():
            longest = 0
            for page in pages.pages(self, group.chunks[place]):
                if page.encoding not in _ENCODINGS:
                    raise BoundsError(
                        f"nothing tells what column {shown(leaf.path)} takes in its encoding (number {page.encoding}); write it "
                        "as PLAIN, or with a dictionary"
                    )
                longest = max(longest, page.size)
                is_dictionary = page.kind == pages.DICTIONARY_PAGE
                # a dictionary stays, beside the other pages
                by_start[page.start] = (~place if is_dictionary else place, _taken(page, leaf, longest))
                size += page.size if is_dictionary else max(page.size, leaf.width * page.values)
                if len(by_start) > _PAGES:
                    raise BoundsError(f"more than {_PAGES:,} pages in a group of rows; write larger pages")
        self._pages, self._starts = by_start, sorted(by_start)
        return max(size, _VALUE * group.rows)  # without columns, nothing but the footer tells how many rows there are

    def begin(self) -> None:
        """The rows that come next are decoded; of those before, only the pages that they end in are held."""
        self._held = dict(self._last)

    def restart(self) -> None:
        """The group is read from its start."""
        self.error = None
        self._held, self._last = {}, {}


def _taken(page: pages.Page, leaf: _Leaf, longest: int) -> int:
    """Bytes of memory that a page takes while rows are decoded of it, at most.

    Args:
        longest: bytes of the largest of the column's pages so far, its dictionary for one.
    """
    size = 2 * page.size if leaf.is_bytes else page.size  # texts are copied
    if page.kind == pages.DICTIONARY_PAGE:
        return size + 2 * _NUMBER * page.values
    if leaf.is_bytes and not leaf.is_text:  # each may be as long as the dictionary
        return size + (page.values if leaf.in_lists else min(page.values, _ROWS)) * longest
    return size + (page.values if leaf.in_lists else min(page.values, _AT_ONCE)) * (leaf.width + _LEVEL)


def _too_often(size: int) -> str:
    return f"the rows take more than {_RATIO:,} times the {size:,} bytes of the file; what follows is not read"


def _deeper(types: list[Any], levels: int) -> bool:
    """Whether columns have more than so many levels."""
    for _ in range(levels):
        types = [kind.field(place).type for kind in types for place in range(kind.num_fields)]
        if not types:
            return False
    return True


def _has_fixed_lists(fields: list[Any], pyarrow: Any) -> bool:
    """Whether a column of one of the first levels is a list of a fixed size, or has one in it."""
    types = [field.type for field in fields]
    for _ in range(LEVELS + 1):
        if any(pyarrow.types.is_fixed_size_list(getattr(kind, "storage_type", kind)) for kind in types):
            return True
        types = [kind.field(place).type for kind in types for place in range(kind.num_fields)]
    return False


def _doubled(fields: list[Any]) -> str | None:
    """A name that two columns have, or two fields of one object."""
    objects = [fields]
    while objects:
        fields = objects.pop()
        names: set[str] = set()
        for field in fields:
            if field.name in names:
                return str(field.name)
            names.add(field.name)
            objects.append([field.type.field(place) for place in range(field.type.num_fields)])
    return None


def _size(array: Any, pyarrow: Any) -> int:
    """Bytes of the values of an array as Python has them, each text as often as it is there."""
    if isinstance(array, pyarrow.DictionaryArray):
        words, places = array.dictionary, array.indices.drop_null().cast("int64")
        if str(words.type).removeprefix("large_") not in ("string", "binary") or not len(places):
            return _VALUE * len(array)
        kind = pyarrow.int64() if str(words.type).startswith("large_") else pyarrow.int32()
        # where its texts begin and end; their lengths, of all of them, take long for a few rows
        bounds = pyarrow.Array.from_buffers(kind, len(words) + 1, [None, words.buffers()[1]], offset=words.offset)
        begins, ends = (bounds.take(pyarrow.compute.add(places, step)) for step in (0, 1))
        return _VALUE * len(array) + int(pyarrow.compute.sum(ends).as_py() - pyarrow.compute.sum(begins).as_py())
    if not array.type.num_fields:
        return max(int(array.nbytes), _VALUE * len(array))
    if isinstance(array, pyarrow.MapArray):
        first, last = (array.offsets[place].as_py() for place in (0, -1))
        parts = [array.keys[first:last], array.items[first:last]]
    else:
        parts = array.flatten()  # of an object its columns, of lists all that is in them
    return _OBJECT * len(array) + sum(_size(part, pyarrow) for part in (parts if isinstance(parts, list) else [parts]))


def _objects(table: Any, pyarrow: Any) -> list[dict[str, Any]]:
    """The rows of a table.

    A time that Python cannot hold, or of a zone that it does not know, is the number of its units. A text that is not UTF-8 is
    bytes.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    except (
        ValueError,
        OverflowError,
        KeyError,
    ):  # an unknown zone is a KeyError, a text that is not UTF-8 a ValueError
        columns = [(name, table.column(name)) for name in table.column_names]
        return [{name: _value(column[row], pyarrow) for name, column in columns} for row in range(table.num_rows)]


def _value(scalar: Any, pyarrow: Any) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pyarrow.StructScalar):
        return {name: _value(item, pyarrow) for name, item in scalar.items()}
    if isinstance(scalar, pyarrow.MapScalar):
        keys, items = (scalar.values.field(place) for place in (0, 1))
        return [[_value(key, pyarrow), _value(item, pyarrow)] for key, item in zip(keys, items, strict=True)]
    if isinstance(scalar, pyarrow.ListScalar):
        return [_value(item, pyarrow) for item in scalar.values]
    if isinstance(scalar, pyarrow.DictionaryScalar):
        return _value(scalar.value, pyarrow)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except (ValueError, OverflowError, KeyError):
        if not pyarrow.types.is_temporal(scalar.type):
            raise
        return str(scalar.value)


def _without_nulls(value: Any) -> Any:
    """A parquet value as JSON without nulls; times and decimals become text.

    Parquet gives every object of a column, such as a call's arguments, the keys of all of them, with null where it has none.
    """
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def pyarrow_modules() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
