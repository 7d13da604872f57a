"""Parquet files as streams of JSON records. A row is an object with the columns as its keys."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.untrusted import LARGEST

_ROWS = 64  # in memory at once; a row may hold a whole rollout
_BUFFER = 1 << 16  # bytes of a column that are read ahead


def rows(path: Path, columns: Container[str] | None = None) -> Iterator[dict[str, Any] | RowError]:
    """Yield the rows of a file without nulls, and an error in place of a row that is too large.

    Args:
        columns: the columns to read; None reads all.
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
    """Yield the rows of a file as pyarrow tables of a few rows each, and a `RowError` in place of a row that is too large.

    Every Parquet file that somebody else wrote is read here.

    Args:
        columns: the columns to read; None reads all.
    """
    pyarrow, parquet = pyarrow_modules()
    try:
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
        fields = list(file.schema_arrow)
        doubled = _doubled(fields)
    except UnicodeDecodeError:
        raise UserError(f"{path}: the name of a column is not UTF-8; rename it") from None
    except (OSError, ValueError, MemoryError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
    with file:
        if doubled is not None:
            raise UserError(f"{path}: two columns are named {shown(doubled)}; rename one of them")
        names = [field.name for field in fields if columns is None or field.name in columns]
        with _breaking_off(pyarrow):
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                mean = group.total_byte_size // max(group.num_rows, 1)
                count = max(1, min(_ROWS, LARGEST // max(mean, 1)))
                for batch in file.iter_batches(count, row_groups=[number], columns=names):
                    table = pyarrow.Table.from_batches([batch])
                    if table.nbytes <= LARGEST:
                        yield table
                        continue
                    for place in range(len(table)):
                        row = table.slice(place, 1)
                        too_large = row.nbytes > LARGEST
                        yield RowError(f"a row of more than {LARGEST:,} bytes", "out of bounds") if too_large else row


@contextmanager
def _breaking_off(pyarrow: Any) -> Iterator[None]:
    """Turn whatever pyarrow raises into a `RowError`: the file is broken from here on."""
    try:
        yield
    except RowError:
        raise
    except (OSError, ValueError, MemoryError, RecursionError, pyarrow.ArrowException) as error:
        raise RowError(f"the file breaks off here ({_line(error)})", "broken document") from None


def _doubled(fields: list[Any]) -> str | None:
    """Return a name that two columns have, or two fields of one object."""
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


def _objects(table: Any, pyarrow: Any) -> list[dict[str, Any]]:
    """Return a table's rows.

    A time that Python cannot hold, or whose zone Python does not know, becomes the number of its units. A text that is not UTF-8
    becomes bytes.
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
    """Return a parquet value as JSON without nulls; times and decimals become text.

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
    """Return `pyarrow` and `pyarrow.parquet`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
