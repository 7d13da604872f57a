"""Datasets by name: `hf:owner/name[:config][@split]`, also of a local folder, by the library `datasets`.

Rows are streamed into a file of lines, which is then read as any other. Without a split, all are read, one after the other.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data.messages import arguments_of
from wm_plugin.data.parquet import without_nulls
from wm_plugin.errors import MissingExtraError, UserError

PREFIX = "hf:"
_AS_TEXT = (
    "messages",
    "conversations",
    "history",
    "steps",
    "traj",
    "tools",
)  # lists that some datasets hold as JSON text


def fetch(source: str, folder: Path, watch: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Path:
    """Write the rows of a dataset to a file in a folder. Returns its path.

    Raises:
        MissingExtraError: `datasets` is not installed.
        UserError: there is no such dataset, configuration or split, or it has no rows.
    """
    name, _, split = source.removeprefix(PREFIX).partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise UserError(
            f"{source!r} names no dataset; write hf:owner/name, hf:owner/name:config or hf:owner/name@split"
        )
    path = folder / f"{name.strip('/').replace('/', '--')}{f'.{split}' if split else ''}.jsonl"
    count = 0
    with path.open("wb") as file:
        for row in watch(_rows(source, name, config or None, split or None)):
            file.write(json.dumps(_plain(row), ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
            count += 1
    if not count:
        raise UserError(f"{source}: the dataset has no rows")
    return path


def _rows(source: str, name: str, config: str | None, split: str | None) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{PREFIX}…", "datasets", "hub") from error
    try:
        loaded = datasets.load_dataset(name, config, split=split, streaming=True)
        parts = loaded.values() if isinstance(loaded, dict) else [loaded]
        media = (datasets.Audio, datasets.Image, datasets.Video)
        for part in parts:
            for column, feature in (part.features or {}).items():
                if isinstance(feature, media):  # their bytes, as a parquet file has them
                    part = part.cast_column(column, type(feature)(decode=False))
            yield from part
    except (OSError, ValueError, LookupError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{source}: {' '.join(str(error).split())[:300]}") from None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON. Arrow gives every object the keys of all others: nulls are left out, as of parquet files."""
    plain: dict[str, Any] = without_nulls(row)
    return plain | {key: arguments_of(plain[key]) for key in _AS_TEXT if key in plain}
