"""Parquet files as streams of JSON records. A row is an object with the columns as its keys."""

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.trajectories.errors import RowError
from wm_plugin.untrusted import LARGEST, LEVELS

_ROWS = 64  # in memory at once; a row may hold a whole rollout
_NUMBER = 8  # bytes
_AT_ONCE = 1024  # values of a column that are decoded together, however few rows are asked for
_OBJECT = 64  # bytes that Python takes for an empty list; in the file it may take none
_TOO_LARGE = f"a row of more than {LARGEST:,} bytes"
# A text can be there once for any number of rows, so that a small file could fill a disk. No rollouts repeat that much: those
# that share a prompt of 10,000 characters have more than a byte of their own each.
_RATIO = 10_000  # bytes of rows to a byte of the file


def rows(path: Path, columns: Container[str] | None = None) -> Iterator[dict[str, Any] | RowError]:
    """The rows of a file, without nulls; an error in place of a row that is too large.

    Args:
        columns: the columns to read; None reads all.

    Raises:
        UserError: it is not a parquet file, its columns are nested too deeply, or their names are not UTF-8 or not unique.
        RowError: the file is broken from this row on, holds rows there that are too large to be told apart, or repeats its
            values more often than any rollouts do.
    """
    pyarrow, parquet = pyarrow_modules()
    try:
        of_file = path.stat().st_size
        file = parquet.ParquetFile(path)
        schema, metadata = file.schema_arrow, file.metadata
        if _deeper([field.type for field in schema], LEVELS):
            raise UserError(f"{path}: its columns are nested more than {LEVELS} levels deep")
        if (name := _doubled(list(schema))) is not None:
            raise UserError(f"{path}: two columns are named {shown(name)}; rename one of them")
        # A text may be there once, for many rows; as a dictionary it stays so until we know what the row would take.
        leaves = [file.schema.column(place) for place in range(len(file.schema))]
        texts = [
            leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.converted_type != "DECIMAL"
        ]
        file = parquet.ParquetFile(path, read_dictionary=texts)
    except UnicodeDecodeError:
        raise UserError(f"{path}: the name of a column is not UTF-8; rename it") from None
    except (
        OSError,
        MemoryError,
        UnicodeEncodeError,
        pyarrow.ArrowException,
    ) as error:  # a path may be no UTF-8, either
        raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
    names = [name for name in schema.names if columns is None or name in columns]
    begins = tuple(names)  # a leaf's path begins with the column's name, which may have points of its own
    # A number that is repeated takes no place in the file, and neither does a value of a fixed length.
    widths = {
        place: max(_NUMBER, leaf.length or 0)
        for place, leaf in enumerate(leaves)
        if columns is None or leaf.path.startswith(begins)
    }
    schema = pyarrow.schema([schema.field(name) for name in names])
    left = max(_RATIO * of_file, 4 * LARGEST)  # bytes of rows that may follow
    try:
        for group in range(metadata.num_row_groups):
            size = _group_size(metadata.row_group(group), widths)
            row = -(-size // max(metadata.row_group(group).num_rows, 1))
            if row > LARGEST:
                raise RowError(f"{_TOO_LARGE}; what follows it is not read", "out of bounds")
            if _decoded(metadata.row_group(group), widths) > 4 * LARGEST:
                raise RowError("values of a fixed length that are too large together", "out of bounds")
            if size > left:
                raise RowError(_too_often(of_file), "out of bounds")
            for batch in file.iter_batches(min(_ROWS, LARGEST // max(row, 1)), row_groups=[group], columns=names):
                whole = _size(batch.to_struct_array(), pyarrow)
                fits = whole <= LARGEST
                # a slice of lists would be cast with all that is in the batch's lists
                for piece in [batch] if fits else (batch.take([place]) for place in range(batch.num_rows)):
                    size = whole if fits else _size(piece.to_struct_array(), pyarrow)
                    left -= size
                    if left < 0:
                        raise RowError(_too_often(of_file), "out of bounds")
                    if size > LARGEST:
                        yield RowError(_TOO_LARGE, "out of bounds")
                    else:
                        table = pyarrow.Table.from_batches([piece])
                        with suppress(
                            pyarrow.ArrowNotImplementedError
                        ):  # no dictionary becomes a view; its rows are the same
                            table = table.cast(schema)
                        yield from map(_without_nulls, _objects(table, pyarrow))
    except RowError:
        raise
    except (OSError, ValueError, MemoryError, RecursionError, pyarrow.ArrowException) as error:
        raise RowError(f"the file breaks off here ({_line(error)})", "broken document") from None


def _too_often(size: int) -> str:
    return f"the rows take more than {_RATIO:,} times the {size:,} bytes of the file; what follows is not read"


def _deeper(types: list[Any], levels: int) -> bool:
    """Whether columns have more than so many levels."""
    for _ in range(levels):
        types = [kind.field(place).type for kind in types for place in range(kind.num_fields)]
        if not types:
            return False
    return True


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


def _group_size(group: Any, widths: dict[int, int]) -> int:
    """Bytes of a group of rows by what the file says of itself: before anything is read.

    Args:
        widths: the least bytes of a value, by the places of the columns that are read.
    """
    columns = ((group.column(place), width) for place, width in widths.items())
    return sum(max(column.total_uncompressed_size, width * column.num_values) for column, width in columns)


def _decoded(group: Any, widths: dict[int, int]) -> int:
    """Bytes of what a group's columns decode together, at least; texts stay as they are in the file."""
    return sum(
        min(group.column(place).num_values, _AT_ONCE) * width for place, width in widths.items() if width > _NUMBER
    )


def _size(array: Any, pyarrow: Any) -> int:
    """Bytes of the values of an array, each text as often as it is there."""
    if isinstance(array, pyarrow.DictionaryArray):
        words, places = array.dictionary, array.indices.drop_null().cast("int64")
        if str(words.type).removeprefix("large_") not in ("string", "binary") or not len(places):
            return _NUMBER * len(array)
        kind = pyarrow.int64() if str(words.type).startswith("large_") else pyarrow.int32()
        # where its texts begin and end; their lengths, of all of them, take long for a few rows
        bounds = pyarrow.Array.from_buffers(kind, len(words) + 1, [None, words.buffers()[1]], offset=words.offset)
        begins, ends = (bounds.take(pyarrow.compute.add(places, step)) for step in (0, 1))
        return _NUMBER * len(array) + int(pyarrow.compute.sum(ends).as_py() - pyarrow.compute.sum(begins).as_py())
    if not array.type.num_fields:
        return int(array.nbytes)
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
