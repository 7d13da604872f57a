"""Sets arms beside one of them: what each measures over its runs, and the difference, paired by seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.report.arms import seed_of, spread
from wm_plugin.lab.report.chart import Interval, Intervals, Value
from wm_plugin.lab.report.document import Section, Table
from wm_plugin.lab.report.measured import AXES
from wm_plugin.lab.report.sources import Measured
from wm_plugin.runtime.page import short
from wm_plugin.tokens.view import visible

# what a terminal has room for, of each evaluation; without any of these its first ones
_FIRST = ("success", "reward", "exact", "word_f1", "accuracy", "real", "w2r", "cr", "env_nll", "nll", "perplexity")
_MOST, _OTHERS = 4, 2
_MAX_ROWS = 200  # of the page's table
_LONGEST = 24  # characters of a name in a terminal

Values = list[tuple[int | None, float]]  # each run's seed and value


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` runs or seeds with its interval, as by `arms.spread`."""

    value: float
    interval: Interval | None
    count: int

    def as_dict(self, counted: str) -> dict[str, Any]:
        return {counted: self.count, "value": self.value, "interval": self.interval}


@dataclass(frozen=True)
class Row:
    """An arm's measure over its runs, and its difference to the arm that others stand beside, over the seeds of both."""

    evaluation: str
    measure: str
    unit: str
    arm: str
    mean: Estimate
    difference: Estimate | None = None

    @property
    def name(self) -> str:
        return f"{self.evaluation}: {self.measure}"


@dataclass(frozen=True)
class Compared:
    """Every measure of all rows that two arms or more have, arm by arm, and the arm that the others stand beside."""

    against: str
    rows: Sequence[Row]


def compared(evaluations: Sequence[Measured], order: Iterable[str] = (), against: str = "") -> Compared:
    """Compare the arms of evaluations.

    Args:
        order: the names of the first arms.
        against: the arm that others are compared with; "" is the first one.

    Raises:
        UserError: no evaluation belongs to `against`.
    """
    there = {one.arm for one in evaluations}
    arms = [arm for arm in dict.fromkeys([*order, *(one.arm for one in evaluations)]) if arm in there]
    if against and against not in there:
        raise UserError(
            f"--against {against}: no evaluation and no rollouts are of an arm of this name{nearest(against, arms)}"
        )
    first = against or next(iter(arms), "")
    table: dict[tuple[str, str, str], dict[str, Values]] = {}
    for one in evaluations:
        seed = seed_of(one.place)
        seed = seed_of(one.evaluation.subject) if seed is None else seed
        for m in one.evaluation.measures:
            if not m.by and m.value is not None:
                of = table.setdefault((one.evaluation.name, m.name, m.unit), {})
                of.setdefault(one.arm, []).append((seed, m.value))
    rows = []
    for key, of in table.items():
        for arm in arms if len(of) > 1 else ():
            if values := of.get(arm):
                others = of.get(first, []) if arm != first else []
                mean = _estimate([value for _, value in values])
                rows.append(Row(*key, arm, mean, _difference(values, others)))
    return Compared(first, rows)


def _estimate(values: Sequence[float]) -> Estimate:
    return Estimate(*spread(values), len(values))


def _difference(values: Values, others: Values) -> Estimate | None:
    own, their = _by_seed(values), _by_seed(others)
    differences = [own[seed] - their[seed] for seed in sorted(own.keys() & their.keys())]
    return _estimate(differences) if differences and all(map(math.isfinite, differences)) else None


def _by_seed(values: Values) -> dict[int, float]:
    """Return each seed's value: the mean, if several runs have the same seed."""
    table: dict[int, list[float]] = {}
    for seed, value in values:
        if seed is not None:
            table.setdefault(seed, []).append(value)
    return {seed: spread(same)[0] for seed, same in table.items()}


def sections(found: Compared) -> list[Section]:
    """Return the table of the arms, and figures of the differences; nothing without two arms that measure the same."""
    if not found.rows:
        return []
    text = (
        "Means over an arm's runs, and under them their 95% intervals by Student's t (of two runs, both; of one there is none). "
        f"Differences to {found.against} are paired: of each seed that both have, then the mean and its interval over seeds. "
        "The seed is what a path has as s0 or seed0."
    )
    rows, before = [], ""
    for row in found.rows[:_MAX_ROWS]:
        head = f"{row.name}\n{AXES.get(row.unit, row.unit)}"
        difference = (_cell(row.difference, signed=True), f"{row.difference.count}" if row.difference else "")
        rows.append(["" if head == before else head, row.arm, f"{row.mean.count}", _cell(row.mean), *difference])
        before = head
    if (more := len(found.rows) - _MAX_ROWS) > 0:
        rows.append([f"… {more:,} more rows are not shown …", *[""] * 5])
    columns = ("measure", "arm", "runs", "mean", f"difference to {found.against}", "seeds")
    return [Section(f"Arms beside {found.against}", text, _figures(found), [Table(columns, rows)])]


def _figures(found: Compared) -> list[Intervals]:
    """Return the differences, a figure a unit."""
    units: dict[str, dict[str, list[Value]]] = {}
    for row in found.rows:
        if row.difference:
            value = Value(row.arm, row.difference.value, row.difference.interval)
            units.setdefault(row.unit, {}).setdefault(row.name, []).append(value)
    title = f"Difference to {found.against}"
    return [Intervals(title, list(rows.items()), AXES.get(unit, unit), "difference") for unit, rows in units.items()]


def _cell(one: Estimate | None, *, signed: bool = False) -> str:
    if one is None:
        return "–"
    limits = "\n" + " to ".join(number(limit, signed) for limit in one.interval) if one.interval else ""
    return number(one.value, signed) + limits


def number(value: float, signed: bool = False) -> str:
    """Write a number for a table, with about three digits."""
    size = abs(value)
    digits = ".2e" if size >= 1e6 or 0 < size < 5e-4 else ".3f" if size < 10 else ".2f" if size < 100 else ",.1f"
    return f"{value:{'+' if signed else ''}{digits}}"


def as_dict(found: Compared) -> dict[str, Any]:
    """Return all rows as JSON values."""
    rows = [
        {
            "evaluation": row.evaluation,
            "measure": row.measure,
            "unit": row.unit,
            "arm": row.arm,
            **row.mean.as_dict("runs"),
            "difference": row.difference and row.difference.as_dict("seeds"),
        }
        for row in found.rows
    ]
    return {"against": found.against, "rows": rows}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Write the table of `as_dict` for a terminal: each evaluation's most important measures, a heading and a line an arm."""
    if not found["rows"]:
        return []
    tables: dict[str, dict[tuple[str, str], list[Mapping[str, Any]]]] = {}
    for row in found["rows"]:
        tables.setdefault(row["evaluation"], {}).setdefault((row["measure"], row["unit"]), []).append(row)
    printed: list[Sequence[str]] = [("", "", "runs", "mean", f"difference to {_name(found['against'])}")]
    left = 0
    for evaluation, measures in tables.items():
        first = [key for key in measures if key[0] in _FIRST][:_MOST] or list(measures)[:_OTHERS]
        left += len(measures) - len(first)
        printed.append((_name(evaluation, 2 * _LONGEST),))
        for measure, unit in first:
            for place, row in enumerate(measures[measure, unit]):
                name = "" if place else f"  {_name(measure)}"
                mean = _on_line(row["value"], row["interval"])
                printed.append((name, _name(row["arm"]), f"{row['runs']}", mean, _paired(row)))
    widths = [max(len(cells[column]) for cells in printed if len(cells) > 1) for column in range(5)]
    made = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip() for cells in printed
    ]
    made.append("[95% interval over runs; of two, both]; differences are paired by seed")
    if left:
        made.append(f"{left} more measure{'s' * (left != 1)} on the page and in the JSON")
    return made


def _paired(row: Mapping[str, Any]) -> str:
    one = row["difference"]
    if one is None:
        return "–"
    seeds = f" ({one['seeds']} seed{'s' * (one['seeds'] != 1)})" if one["seeds"] != row["runs"] else ""
    return _on_line(one["value"], one["interval"], signed=True) + seeds


def _on_line(value: float, interval: Interval | None, *, signed: bool = False) -> str:
    limits = f" [{', '.join(number(limit, signed) for limit in interval)}]" if interval else ""
    return number(value, signed) + limits


def _name(text: str, longest: int = _LONGEST) -> str:
    return visible(short(text, longest)).replace("\n", " ")
