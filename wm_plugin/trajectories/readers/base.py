"""What every reader does alike: each record is converted on its own, and what cannot be converted is rejected with the reason."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wm_plugin.trajectories import files
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.fields import Fields
from wm_plugin.trajectories.schema import Source, Trajectory

Convert = Callable[[Any, Source], Iterator[Trajectory | Fields]]  # long formats give fields, which are checked later
Rows = tuple[Iterable[files.Record], Convert]  # of a reader whose rows are not the file's records
Make = Callable[[Any], Trajectory | Fields]  # of fields, what is wanted of them; it checks them


@dataclass(frozen=True)
class Reject:
    """A row that was left out."""

    file: str
    row: int
    kind: str  # a few words, to be counted by
    reason: str
    raw: str  # the row as it was, where it could be read at all as JSON


Found = Trajectory | Fields | Reject


def convert_rows(
    records: Iterable[files.Record], convert: Convert, name: str, path: Path, make: Make
) -> Iterator[Found]:
    """The trajectories of each record; a `Reject` for one that has none or does not fit."""
    for record in records:
        source = Source(format=name, file=path.name, row=record.row)
        try:
            if record.error is not None:
                raise record.error
            # whole: half a record would count as read and as rejected
            found = [row if isinstance(row, Trajectory) else make(row) for row in convert(record.value, source)]
            if not found:
                raise RowError("nothing in it", "empty")
        except RowError as error:
            yield Reject(path.name, record.row, error.kind, str(error), record.raw or _raw(record.value))
        except (ValidationError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300]
            yield Reject(path.name, record.row, "does not fit the schema", reason, record.raw or _raw(record.value))
        else:
            yield from found


def number_of(value: Any) -> float | None:
    """A number, which some files write as a string. NaN is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def rest_of(record: Mapping[str, Any], *used: str, **read: Any) -> dict[str, Any]:
    """What of a record has no field, for the metadata: all keys but those used, and those `read` of which nothing came."""
    unread = {key for key, value in read.items() if value is None}
    return {
        key: value
        for key, value in record.items()
        if key not in used and (key not in read or (key in unread and value is not None))
    }


def task_of(prompt: Any) -> str:
    """A name for a task that has none: all rollouts of a prompt are of one task."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16]


def _raw(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return ""
