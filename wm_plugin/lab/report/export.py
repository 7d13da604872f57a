"""Writes a report as data: one JSON document, or one CSV table with a value a row."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from wm_plugin.lab.report import compared
from wm_plugin.lab.report.arms import Arm
from wm_plugin.lab.report.compared import Compared
from wm_plugin.lab.report.logs import rows_of
from wm_plugin.lab.report.sources import Measured

FORMAT, VERSION = "wm_plugin.report", 1
COLUMNS = (
    "kind", "arm", "run", "name", "step", "by", "group", "value", "unit", "low", "high", "count", "failed", "with_failed",
)  # fmt: skip
_FORMULA = tuple("=+-@＝＋－＠\t\r\n")  # a spreadsheet takes a text that begins so for a formula


def as_dict(
    arms: Sequence[Arm], evaluations: Sequence[Measured], rollouts: Sequence[tuple[str, Any]], found: Compared
) -> dict[str, Any]:
    """Return all values of the runs, all measures, and the arms beside one of them, as JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "arms": [
            {
                "arm": arm.name,
                "runs": [
                    {
                        "name": run.name,
                        "sources": run.sources,
                        "notes": run.notes,
                        "metrics": {
                            metric: {"steps": sorted(steps), "values": [steps[step] for step in sorted(steps)]}
                            for metric, steps in sorted(run.values.items())
                        },
                    }
                    for run in arm.runs
                ],
            }
            for arm in arms
        ],
        "evaluations": [{"label": one.name, "folder": one.place, **one.evaluation.as_dict()} for one in evaluations],
        "rollouts": [{"label": name, **figures} for name, figures in rollouts],
        "compared": compared.as_dict(found),
    }


def to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def to_csv(arms: Sequence[Arm], evaluations: Sequence[Measured], found: Compared) -> str:
    """Write each value of a run, each measure, and each mean and difference of arms as a row.

    No text begins as a formula that a spreadsheet would run.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([_cell(value) for value in row] for row in _rows(arms, evaluations, found))
    return out.getvalue()


def _rows(arms: Sequence[Arm], evaluations: Sequence[Measured], found: Compared) -> Iterator[tuple[Any, ...]]:
    for arm in arms:
        for run in arm.runs:
            for metric, step, value in rows_of(run):
                yield ("training", arm.name, run.name, metric, step, "", "", value, *[""] * 6)
    for one in evaluations:
        for m in one.evaluation.measures:
            limits = (m.unit, m.low, m.high, m.count, m.failed, m.with_failed)
            yield (one.evaluation.name, one.name, one.place, m.name, "", m.by, m.group, m.value, *limits)
    for row in found.rows:
        for kind, estimate in (("mean", row.mean), (f"difference to {found.against}", row.difference)):
            if estimate:
                low, high = estimate.interval or (None, None)
                name = (kind, row.arm, "", row.measure, "", "evaluation", row.evaluation)
                yield (*name, estimate.value, row.unit, low, high, estimate.count, "", "")


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return "" if value is None else value
