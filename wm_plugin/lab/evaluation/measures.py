"""What an evaluation measured, and the folder that keeps it.

Every evaluation writes `result.json` (the measures) and `rows.jsonl` (what was measured) into the folder of `--out`, and `wm
report` reads them. The models' answers lie beside them (`client.answers`), so a killed run goes on.
"""

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError

from wm_plugin.data import files
from wm_plugin.data.outputs import PREFIX, atomic, write_text
from wm_plugin.data.predictions import same_settings
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.intervals import Ratio, compare, interval
from wm_plugin.untrusted import loads, without_nan

FORMAT, VERSION = "wm_plugin.evaluation", 1
MANIFEST, RESULT, ROWS = "evaluation.json", "result.json", "rows.jsonl"
Number = int | float  # a count that was read stays a whole number
UNITS = ("share", "nats", "points", "ratio", "correlation", "perplexity", "count", "seconds", "score")


@dataclass(frozen=True)
class Measure:
    """One number, of all rows or of a group of them."""

    name: str  # such as "exact"
    value: Number | None  # None if it is undefined; `note` says why
    unit: str  # one of `UNITS`. "nats" are per token, "points" go from 0 to 100, and a "score" has its reward's scale
    count: int  # how many rows without a failure it is the mean of
    # what the rows are grouped by and the group's name, such as "tool" and "search"; "" for all rows
    by: str = ""
    group: str = ""
    # the limits of a 95% interval, or None
    low: Number | None = None
    high: Number | None = None
    failed: int = 0  # how many rows had no answer, a cut or an empty one
    with_failed: Number | None = None  # the value if failed rows count as the lowest possible value
    note: str = ""  # a remark

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"unit is {self.unit!r}; write one of {', '.join(UNITS)}")


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation."""

    name: str  # such as "one-step"
    subject: str  # what was evaluated: a model's folder, or its name on a server
    data: str  # what it was evaluated on
    # everything else that the measures depend on, as JSON values
    settings: Mapping[str, Any] = field(default_factory=dict)
    measures: Sequence[Measure] = ()  # in the order in which they are shown
    failures: Mapping[str, int] = field(default_factory=dict)  # how many rows failed, by reason
    notes: Sequence[str] = ()  # sentences for readers

    def measure(self, name: str, by: str = "", group: str = "") -> Measure:
        """Return the measure with this name and group; raise KeyError without one."""
        for one in self.measures:
            if (one.name, one.by, one.group) == (name, by, group):
                return one
        raise KeyError((name, by, group))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; numbers that are not finite become None."""
        own = {**vars(self), "measures": [asdict(one) for one in self.measures]}
        return {"format": FORMAT, "version": VERSION, **without_nan(own)}


_EVALUATION = TypeAdapter(Evaluation)


def ratio(
    name: str,
    unit: str,
    totals: Sequence[float],
    counts: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    by: str = "",
    group: str = "",
    failed: float = 0,
    worst: float = 0,
    note: str = "",
    seed: int = 0,
) -> Measure:
    """Make the measure sum(totals) / sum(counts) with its interval.

    Args:
        totals, counts, clusters: one of each row that did not fail.
        failed: how many rows failed, which `with_failed` takes for `worst`.
    """
    total, count = sum(totals), sum(counts)
    value, every = (total / count if count else None), count + failed
    low, high = interval(totals, counts, clusters, seed=seed)
    lowest = (total + worst * failed) / every if every else None
    return Measure(name, value, unit, round(count), by, group, low, high, round(failed), lowest, note)


def mean_of(name: str, unit: str, rows: Sequence[tuple[float | None, Hashable]], **more: Any) -> Measure:
    """Make the measure of a mean, as `ratio` does.

    Args:
        rows: each row's value, None if it failed, and its cluster.
    """
    whole = [(value, cluster) for value, cluster in rows if value is not None]
    values, clusters = [value for value, _ in whole], [cluster for _, cluster in whole]
    return ratio(name, unit, values, [1.0] * len(whole), clusters, failed=len(rows) - len(whole), **more)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return sum(values) / len(values) if values else None


class Key(NamedTuple):
    """A measure's name, unit and group, as in `Measure`."""

    name: str
    unit: str = "share"
    by: str = ""
    group: str = ""


@dataclass
class Sums:
    """Sums of each measure and task: total, count, and how many rows failed."""

    of: dict[Key, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, key: Key, task: str, total: float = 0.0, count: float = 1.0, failed: float = 0.0) -> None:
        """Add to a task's sums of a measure; a failed row has a count of 0."""
        sums = self.of.setdefault(key, {}).setdefault(task, [0.0, 0.0, 0.0])
        for place, value in enumerate((total, count, failed)):
            sums[place] += value

    def measures(self, *, by: str = "", group: str = "", seed: int = 0) -> list[Measure]:
        """Return the measures in the order in which they came, with intervals over tasks.

        Args:
            by, group: the group for measures without one of their own; the others are then left out.
        """
        chosen = self.of
        if by:
            chosen = {key._replace(by=by, group=group): tasks for key, tasks in self.of.items() if not key.by}
        measures = []
        for key, tasks in chosen.items():
            totals, counts, failed = zip(*tasks.values(), strict=True)
            of: dict[str, Any] = {"by": key.by, "group": key.group, "failed": sum(failed), "seed": seed}
            measures.append(ratio(key.name, key.unit, totals, counts, list(tasks), **of))
        return measures


def differences(after: Sums, before: Sums, *, seed: int = 0) -> list[Measure]:
    """Return each shared measure's difference over the shared tasks, with an interval of 99%."""
    measures = []
    for key, tasks in after.of.items():
        others = before.of.get(key, {})
        common = [task for task in tasks if task in others and tasks[task][1] + others[task][1]]
        if len(common) < 2:
            continue
        sums = ([of[task] for task in common] for of in (tasks, others))
        ratios = [Ratio(*torch.tensor(one, dtype=torch.float64)[:, :2].T) for one in sums]
        if not all(float(one.count.sum()) for one in ratios):
            continue
        paired = compare(ratios[0], ratios[1], common, seed)
        # NaN where a draw has no count
        low, high = (None if math.isnan(limit) else limit for limit in (paired.low, paired.high))
        note = f"on the same {len(common):,} tasks, 99% interval: {paired.verdict}"
        of = (f"{key.name}_difference", paired.difference, key.unit, len(common), key.by, key.group)
        measures.append(Measure(*of, low, high, note=note))
    return measures


def open_folder(folder: str | Path, name: str, subject: str, data: str) -> Path:
    """Make an evaluation's folder, or return that of an earlier run of the same evaluation."""
    path = Path(folder)
    try:
        there = [one.name for one in path.iterdir()] if path.is_dir() else []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if MANIFEST not in there and any(not one.startswith(PREFIX) for one in there):
        raise UserError(f"{path}: holds files, but no {MANIFEST} of wm eval; name another folder")
    settings = {"format": FORMAT, "version": VERSION, "evaluation": name, "subject": subject, "data": data}
    same_settings(path / MANIFEST, settings, "an evaluation")
    return path


def write_result(evaluation: Evaluation, folder: str | Path) -> None:
    """Write `result.json` into an existing folder."""
    text = json.dumps(evaluation.as_dict(), indent=2, ensure_ascii=True, allow_nan=False)
    write_text(Path(folder) / RESULT, text + "\n")


def write_rows(rows: Iterable[Mapping[str, Any]], folder: str | Path) -> None:
    """Write `rows.jsonl` into an existing folder. Numbers that are not finite, such as a broken model's NLL, become null.

    `wm report` reads `context`, `action`, `real`, `predicted` (texts), `scores` (numbers by name) and `failure` (why there is no
    prediction) from rows that have them.
    """
    write_lines(map(without_nan, rows), Path(folder) / ROWS)


def write_lines(rows: Iterable[Any], path: Path) -> None:
    """Write JSON lines, completely or not at all."""
    with atomic(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=True, allow_nan=False, default=str) + "\n")


def read_result(path: str | Path) -> Evaluation:
    """Read the evaluation in a folder, or in a `result.json`."""
    path = Path(path)
    path = path / RESULT if path.is_dir() else path
    try:
        value = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UserError(f"{path}: no result of wm eval")
    if value.get("version") != VERSION:
        raise UserError(f"{path}: of another version of wm_plugin")
    try:
        return _EVALUATION.validate_python(value)
    except ValidationError:
        raise UserError(f"{path}: damaged") from None


def read_rows(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Read a folder's rows, in order; there are none without `rows.jsonl`."""
    path = Path(folder) / ROWS
    for record in files.lines(path) if path.is_file() else ():
        if not isinstance(record.value, dict):
            raise UserError(f"{path}:{record.row + 1}: damaged")
        yield record.value
