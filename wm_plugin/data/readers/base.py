"""Shared by all readers: records are converted one by one, and a record that cannot be converted is rejected with the reason."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.schema import Fields, Source, Trajectory, misfit

Convert = Callable[[Any, Source], Iterator[Trajectory | Fields]]
Rows = tuple[Iterable[files.Record], Convert]  # from a reader whose rows are not the file's records
Complete = Callable[[Trajectory], Trajectory]  # completes what a reader made


@dataclass(frozen=True)
class Reject:
    """A rejected row."""

    file: str
    row: int
    kind: str  # the class of reason, for counts
    reason: str
    raw: str  # the row's text, as far as it is known


Outcome = Trajectory | Reject  # of a row


def convert_rows(
    records: Iterable[files.Record], convert: Convert, name: str, path: Path, completions: Iterable[Complete] = ()
) -> Iterator[Outcome]:
    """Yield the trajectories of each record, completed, or its `Reject` if it has none or does not fit the schema."""
    for record in records:
        source = Source(format=name, file=path.name, row=record.row)
        try:
            if record.error is not None:
                raise record.error
            # all before the first is yielded: a record is either read or rejected
            trajectories = [Trajectory.model_validate(row) for row in convert(record.value, source)]
            if not trajectories:
                raise RowError("nothing in it", "empty")
        except RowError as error:
            yield _reject(record, path, error.kind, str(error))
        except (ValidationError, RecursionError) as error:
            yield _reject(record, path, "does not fit the schema", misfit(error)[:300])
        else:
            for trajectory in trajectories:
                for complete in completions:
                    trajectory = complete(trajectory)
                yield trajectory


def _reject(record: files.Record, path: Path, kind: str, reason: str) -> Reject:
    return Reject(path.name, record.row, kind, reason, record.raw or _raw(record.value))


def number_of(value: Any) -> float | None:
    """Read a number that may be written as a string; None for anything else, and for NaN."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def rest_of(record: Mapping[str, Any], *used: str, **read: Any) -> dict[str, Any]:
    """Return the keys of a record that have no field, for the metadata.

    Args:
        read: keys with the values that were read from them. A key whose value is None could not be read: it is kept.
    """
    unread = {key for key, value in read.items() if value is None}
    return {
        key: value
        for key, value in record.items()
        if key not in used and (key not in read or (key in unread and value is not None))
    }


def task_of(prompt: Any) -> str:
    """Make a task id of the prompt: rollouts of the same prompt are of one task."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16]


def _raw(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return ""
