"""Parquet files as streams of JSON records. A row is an object with the columns as its keys."""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.trajectories.errors import RowError

_ROWS = 64  # in memory at once; a row may hold a whole rollout


def rows(path: Path, columns: Container[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file, without nulls.

    Args:
        columns: the columns to read; None reads all.

    Raises:
        UserError: it is not a parquet file.
        RowError: the file is broken from this row on.
    """
    pyarrow, parquet = pyarrow_modules()
    try:
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: cannot be read as parquet ({_line(error)})") from None
    names = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
    try:
        for batch in file.iter_batches(_ROWS, columns=names):
            yield from (_without_nulls(row) for row in batch.to_pylist())
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise RowError(f"the file breaks off here ({_line(error)})", "broken document") from None


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
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
