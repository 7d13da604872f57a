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
from wm_plugin.data.messages import arguments_of
from wm_plugin.data.schema import Fields, Source, Trajectory, misfit
from wm_plugin.untrusted import LARGEST

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


def gathered(records: Iterable[files.Record]) -> Iterator[files.Record]:
    """Yield the records of a file that is one list as one, after those that could not be read."""
    values = []
    for record in records:
        if record.error is None:
            values.append(record.value)
        else:
            yield record
    if values:
        yield files.Record(0, values)


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


def object_of(holder: Any, *keys: str) -> Fields:
    """Return the object at a path of keys; an empty one if it is not there."""
    for key in keys:
        holder = holder.get(key) if isinstance(holder, dict) else None
    return holder if isinstance(holder, dict) else {}


def tools_of(*listed: Any) -> list[dict[str, Any]]:
    """Read the first of these lists of tool schemas that is not empty, each in OpenAI's envelope; a list may be JSON text.

    Raises:
        RowError: it is no list of objects.
    """
    tools: Any = next(filter(None, map(arguments_of, listed)), [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError("the tools are no list of objects", "bad tools")
    return [_tool(tool) for tool in tools]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool or not isinstance(tool.get("name"), str) or tool.get("type", "function") != "function":
        return tool  # in its envelope already, or no function: a server's own tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def task_of(prompt: Any) -> str:
    """Make a task id of the prompt: rollouts of the same prompt are of one task."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16]


def check_common(common: Any, count: int) -> None:
    """Refuse what so many trajectories of a record have in common if all copies of it are larger than a record may be."""
    if count * len(_raw(common)) > LARGEST:
        raise RowError(f"{count:,} trajectories with too much in common", "out of bounds")


def _raw(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return ""
