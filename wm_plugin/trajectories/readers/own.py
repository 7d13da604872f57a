"""Our own files: a `Trajectory` a line, or parquet with one in the column `trajectory`, as `write` makes them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.trajectories import files
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.readers.base import Found, convert_rows
from wm_plugin.trajectories.schema import VERSION, Source, Trajectory


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, Mapping) and {"turns", "context", "version"} <= head.sample.keys()


def read(path: Path, head: files.Head) -> Iterator[Found]:
    return convert_rows(files.records(path, head), convert, "wm", path)


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    del source  # a trajectory keeps that of its first reading
    version = record.get("version") if isinstance(record, Mapping) else None
    if isinstance(version, int) and version > VERSION:
        raise RowError(f"written by a later release (version {version}, known is {VERSION})", "later version")
    yield Trajectory.model_validate(record)


def read_parquet(path: Path) -> Iterator[Found]:
    """The rows of a parquet file of ours.

    Raises:
        UserError: it is none.
    """
    pyarrow, parquet = pyarrow_modules()
    try:
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise UserError(f"{path}: {str(error).partition(chr(10))[0]}") from None
    if "trajectory" not in file.schema_arrow.names:
        raise UserError(f"{path}: no column 'trajectory'; of parquet files only those of wm data convert are read")

    def records() -> Iterator[files.Record]:
        row = 0
        for batch in file.iter_batches(columns=["trajectory"]):
            for text in batch.column(0).to_pylist():
                yield files.parse(row, str(text).encode(errors="surrogatepass"))
                row += 1

    return convert_rows(records(), convert, "wm", path)


def pyarrow_modules() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet
