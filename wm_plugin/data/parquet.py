"""Parquet files as streams of JSON records. A row is an object with the columns as its keys."""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.untrusted import LARGEST

_ROWS = 64  # in memory at once; a row may hold a whole rollout
_BUFFER = 1 << 16  # bytes of a column that are read ahead


def rows(path: Path, columns: Container[str] | None = None) -> Iterator[dict[str, Any] | RowError]:
    """Yield the rows of a file without nulls, and an error in place of a row that cannot be read.

    Raises:
        UserError: as `tables`.
    """
    for table in tables(path, columns):
        yield from [table] if isinstance(table, RowError) else _objects(table)


def tables(path: Path, columns: Container[str] | None = None) -> Iterator[Any]:
    """Yield the rows of a file as pyarrow tables of a few rows each.

    A row that is too large becomes a `RowError`, and so does all that follows where the file is broken. Every Parquet file that
    somebody else wrote is read here.

    Raises:
        UserError: it is not a parquet file, or the names of its columns are not unique.
    """
    pyarrow, parquet = pyarrow_modules()
    broken = (OSError, ValueError, MemoryError, pyarrow.ArrowException)
    try:
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
        names = file.schema_arrow.names
    except broken as error:
        raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
    with file:
        if doubled := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path}: two columns are named {shown(doubled[0])}; rename one of them")
        chosen = [name for name in names if columns is None or name in columns]
        try:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                count = max(1, min(_ROWS, LARGEST * group.num_rows // max(group.total_byte_size, 1)))
                for batch in file.iter_batches(count, row_groups=[number], columns=chosen):
                    table = pyarrow.Table.from_batches([batch])
                    if table.nbytes <= LARGEST:
                        yield table
                    else:
                        yield from map(_bounded, (table.slice(place, 1) for place in range(len(table))))
        except broken as error:
            yield RowError(f"the file breaks off here ({_line(error)})", "broken document")


def _bounded(row: Any) -> Any:
    return row if row.nbytes <= LARGEST else RowError(f"a row of more than {LARGEST:,} bytes", "out of bounds")


def _objects(table: Any) -> list[dict[str, Any] | RowError]:
    """Return a table's rows. A row with a time or a text that Python cannot hold becomes an error."""
    try:
        return [without_nulls(row) for row in table.to_pylist()]
    except (ValueError, OverflowError, LookupError) as error:  # LookupError: an unknown time zone
        if len(table) == 1:
            return [RowError(f"a value cannot be read ({_line(error)})")]
        return [row for place in range(len(table)) for row in _objects(table.slice(place, 1))]


def without_nulls(value: Any) -> Any:
    """Return a parquet value as JSON without nulls; times and decimals become text.

    Parquet gives every object of a column, such as a call's arguments, the keys of all of them, with null where it has none.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
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
