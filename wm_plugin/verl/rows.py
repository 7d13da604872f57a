"""The rows of a run, looked at before Ray starts: that there are too few, or none with a prompt, verl finds out minutes later."""

from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow.parquet

from wm_plugin.errors import UserError, nearest
from wm_plugin.untrusted import loads
from wm_plugin.verl.support import is_one_machine


def check_rows(config: Any) -> None:
    """Refuse files without rows, with fewer than a step takes, or without prompts, as far as they lie here."""
    data = config.data
    if (data.get("custom_cls") or {}).get("path"):
        return
    for name, least in (("train", data.train_batch_size), ("val", 1)):
        files = data.get(f"{name}_files")
        known, total = True, 0
        for file in [files] if isinstance(files, str) else files or ():
            looked_at = _look(str(file), least)
            known &= looked_at is not None
            rows, columns = looked_at or (0, [])
            total += rows
            key = data.get("prompt_key", "prompt")
            if rows and key not in columns:
                raise UserError(
                    f"data.{name}_files: {file} has no column {key!r}{nearest(key, columns)}; its columns: "
                    f"{shorten(', '.join(map(repr, columns)), 200)} (data.prompt_key names it)"
                )
        if not files or not known:
            continue
        if (most := data.get(f"{name}_max_samples", -1)) > 0:
            total = min(total, most)
        if not total:
            raise UserError(f"data.{name}_files has no rows: {shorten(str(files), 200)}; give it rows")
        if total < least:
            raise UserError(
                f"data.{name}_files has {total} rows, fewer than a step takes: write data.train_batch_size={total} or less"
            )


def check_files(config: Any) -> None:
    """Refuse files that are not there, or not parquet, where they say that they are.

    On one machine only: of a cluster, another one may have them.
    """
    if not is_one_machine(config) or (config.data.get("custom_cls") or {}).get("path"):
        return
    for name in ("train_files", "val_files"):
        files = config.data.get(name)
        for file in [files] if isinstance(files, str) else files or ():
            path = Path(str(file)).expanduser()
            if "://" in str(file):
                continue
            if not path.exists():
                raise UserError(
                    f"data.{name}: there is no file {str(file)!r}; python -m wm_plugin.verl.data writes the rows of a world"
                )
            try:
                if path.suffix == ".parquet":
                    pyarrow.parquet.ParquetFile(path).close()
            except (pyarrow.ArrowException, OSError) as error:
                raise UserError(
                    f"data.{name}: {file} cannot be read as parquet ({' '.join(str(error).split())[:200]})"
                ) from None


def _look(file: str, most: int) -> tuple[int, list[str]] | None:
    """Return how many rows a file has, at least up to `most`, and its columns; None if it cannot be read here."""
    path = Path(file).expanduser()
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as table:
                return table.metadata.num_rows, table.schema_arrow.names
        with path.open(encoding="utf-8") as lines:
            first = next((line for line in lines if line.strip()), None)
            if first is None:
                return 0, []
            return 1 + sum(1 for _ in islice(filter(str.strip, lines), most - 1)), list(loads(first))
    except Exception:  # verl says what is wrong with a user's files
        return None
