"""Evaluations on a page: measures with their intervals, tables of both readings, curves by turn, and heat maps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from wm_plugin.lab.evaluation.measures import Evaluation, Measure
from wm_plugin.lab.report.arms import spread
from wm_plugin.lab.report.chart import (
    MAX_CELLS,
    MAX_ROWS,
    Curve,
    Figure,
    Heat,
    Interval,
    Intervals,
    Series,
    Value,
    value_label,
)
from wm_plugin.lab.report.document import Section, Table
from wm_plugin.lab.report.sources import Measured

_MAX_GROUPS = 12  # rows of a figure, the largest groups
_MAX_ROWS = 200  # of a table
_MAX_FIGURES, _MAX_TABLES = 8, 12
_MAX_TRIED = 100  # measures by group that are considered for figures
_SLASH = "/"  # between the two names of a group of pairs, such as layer/module
AXES = {"nats": "nats a token", "points": "points of 100", "share": "share"}


def pooled(evaluations: Sequence[Measured]) -> list[Measured]:
    """Pool an arm's evaluations of a step: their mean, and its interval over them (of two, their range)."""
    arms: dict[str, list[Measured]] = {}
    for one in evaluations:
        arms.setdefault(one.arm or one.name, []).append(one)
    return [
        Measured(arm, several[0].place, several[0].evaluation if len(several) == 1 else _mean(several), arm)
        for arm, several in arms.items()
    ]


def _mean(several: Sequence[Measured]) -> Evaluation:
    table: dict[tuple[str, str, str, str], list[Measure]] = {}
    failures: Counter[str] = Counter()
    for one in several:
        failures.update(one.evaluation.failures)
        for m in one.evaluation.measures:
            table.setdefault((m.name, m.unit, m.by, m.group), []).append(m)
    measures = []
    for (name, unit, by, group), same in table.items():
        values = [m.value for m in same if m.value is not None]
        value, limits = spread(values) if values else (None, None)
        others = [m.with_failed for m in same if m.with_failed is not None]
        low, high = limits or (None, None)
        counts = (sum(m.failed for m in same), spread(others)[0] if others else None, f"over {len(values)} runs")
        measures.append(Measure(name, value, unit, sum(m.count for m in same), by, group, low, high, *counts))
    first = several[0].evaluation
    data = ", ".join(dict.fromkeys(one.evaluation.data for one in several))
    return Evaluation(first.name, first.subject, data, {}, measures, failures)


def sections(step: str, evaluations: Sequence[Measured]) -> list[Section]:
    """Return what a step's evaluations measured: figures, the table of all rows, and, folded, those of groups."""
    made = [Section(step, _text(evaluations), _figures(evaluations), _tables(evaluations, ""))]
    groups = list(dict.fromkeys(m.by for m in _all(evaluations) if m.by))[:_MAX_TABLES]
    tables = [table for by in groups for table in _tables(evaluations, by)]
    if tables:
        made.append(Section(f"{step}: tables by {', '.join(groups)}", tables=tables, folded=True))
    return made


def _all(evaluations: Sequence[Measured]) -> list[Measure]:
    return [m for one in evaluations for m in one.evaluation.measures]


def _text(evaluations: Sequence[Measured]) -> str:
    data = list(dict.fromkeys(one.evaluation.data for one in evaluations if one.evaluation.data))
    on = f"On {', '.join(data[:3])}{' and others' if len(data) > 3 else ''}. " if data else ""
    failures: dict[str, int] = {}
    for one in evaluations:
        for reason, count in one.evaluation.failures.items():
            failures[reason] = failures.get(reason, 0) + count
    counts = "; ".join(f"{reason}: {count:,}" for reason, count in failures.items())
    bars = "Bars are 95% intervals; over an arm's runs where it has several (of two, their range)."
    return f"{on}{bars}{f' Without an answer, or left out: {counts}.' if counts else ''}"


def _figures(evaluations: Sequence[Measured]) -> list[Figure]:
    figures: list[Figure] = []
    for unit in dict.fromkeys(m.unit for m in _all(evaluations) if not m.by):
        names = list(dict.fromkeys(m.name for m in _all(evaluations) if not m.by and m.unit == unit))[:MAX_ROWS]
        rows = [(name, row) for name in names if (row := _values(evaluations, name, "", "", unit))]
        if rows:
            figures.append(_intervals("Measures", rows, unit))
    pairs = dict.fromkeys((m.by, m.name) for m in _all(evaluations) if m.by and m.value is not None)
    for by, name in list(pairs)[:_MAX_TRIED]:
        if len(figures) == _MAX_FIGURES:
            break
        if _SLASH in by:
            heats = [heat for one in evaluations if (heat := _heat(one, by, name))][: _MAX_FIGURES - len(figures)]
            cells = [cell for heat in heats for row in heat.values for cell in row if cell is not None]
            figures += [replace(heat, largest=max(cells, default=0.0)) for heat in heats]  # comparable by their colours
        elif figure := _by(evaluations, by, name):
            figures.append(figure)
    return figures


def _by(evaluations: Sequence[Measured], by: str, name: str) -> Figure | None:
    """Draw a measure by group: a line over numbers such as turns, marks for names."""
    measures = [m for m in _all(evaluations) if (m.by, m.name) == (by, name)]
    groups, unit = list(dict.fromkeys(m.group for m in measures)), measures[0].unit
    if len(groups) > 1 and all(group.isdecimal() and len(group) < 10 for group in groups):
        series = [_series(one, by, name) for one in evaluations]
        is_share = all(m.unit == "share" and 0 <= (m.value or 0) <= 1 for m in measures)
        return Curve(f"{name} by {by}", [one for one in series if one.y], AXES.get(unit, unit), by, is_share)
    size: Counter[str] = Counter()
    for m in measures:
        size[m.group] += m.count
    largest = {group for group, _ in size.most_common(_MAX_GROUPS)}
    chosen = [group for group in groups if group in largest]
    rows = [(group, values) for group in chosen if (values := _values(evaluations, name, by, group, unit))]
    return _intervals(f"{name} by {by}", rows, unit) if rows else None


def _series(one: Measured, by: str, name: str) -> Series:
    points = [(m, m.value) for m in one.evaluation.measures if (m.by, m.name) == (by, name) and m.value is not None]
    points.sort(key=lambda point: int(point[0].group))
    band = [_interval(m) or (value, value) for m, value in points] if any(_interval(m) for m, _ in points) else ()
    return Series(one.name, [int(m.group) for m, _ in points], [value for _, value in points], band)


def _heat(one: Measured, by: str, name: str) -> Heat | None:
    """Draw a measure by pairs, such as layer/module: the second names are rows."""
    cells: dict[tuple[str, str], float | None] = {}
    percent = False
    for m in one.evaluation.measures:
        if (m.by, m.name) == (by, name) and _SLASH in m.group:
            column, _, row = m.group.partition(_SLASH)
            cells[row, column] = m.value
            percent = m.unit == "share"
    if not cells:
        return None
    rows = list(dict.fromkeys(row for row, _ in cells))[:MAX_CELLS]
    columns = sorted(dict.fromkeys(column for _, column in cells), key=_natural)[:MAX_CELLS]
    across, _, down = by.partition(_SLASH)
    values = [[cells.get((row, column)) for column in columns] for row in rows]
    title, unit = f"{name} by {across} and {down}: {one.name}", "share" if percent else name
    return Heat(title, rows, columns, values, unit, f"{across}, from left to right", down, percent)


def _natural(name: str) -> tuple[str, int, str]:
    stack, _, number = name.rpartition(".")
    return (stack, int(number), "") if number.isdecimal() and len(number) < 10 else (name, 0, name)


def _tables(evaluations: Sequence[Measured], by: str) -> list[Table]:
    """Return a row for each measure, group and arm, with both readings: without failures, and with them as the lowest."""
    rows: dict[str, list[list[str]]] = {}  # by measure: arms of a measure stand side by side
    for one in evaluations:
        for m in one.evaluation.measures:
            if m.by == by:
                name = f"{m.name}, {m.group}" if by else m.name
                counts = [f"{m.count:,}", f"{m.failed:,}", _cell(m.with_failed, m.unit), m.note]
                rows.setdefault(name, []).append([name, one.name, _value(m), *counts])
    table = [row for same in rows.values() for row in same]
    if not table:
        return []
    if (more := len(table) - _MAX_ROWS) > 0:
        table = [*table[:_MAX_ROWS], [f"… {more:,} more rows are not shown …", *[""] * 6]]
    columns = [f"measure, {by}" if by else "measure", "of", "value", "rows", "without an answer", "these as the lowest"]
    if not any(row[6] for row in table):
        return [Table(columns, [row[:6] for row in table], (6,))]
    return [Table([*columns, ""], table, (6,))]


def _value(m: Measure) -> str:
    interval = _interval(m)
    limits = f"\n{_number(interval[0], m.unit)} to {_number(interval[1], m.unit)}" if interval else ""
    return _cell(m.value, m.unit) + limits


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return _number(value, unit) + ("" if unit == "share" else f" {AXES.get(unit, unit)}")


def _number(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else value_label(value, False)


def _intervals(title: str, rows: Sequence[tuple[str, Sequence[Value]]], unit: str) -> Intervals:
    percent = unit == "share" and all(0 <= one.value <= 1 for _, values in rows for one in values)
    return Intervals(title, rows, AXES.get(unit, unit), AXES.get(unit, unit), percent)


def _values(evaluations: Sequence[Measured], name: str, by: str, group: str, unit: str) -> list[Value]:
    return [
        Value(one.name, m.value, _interval(m))
        for one in evaluations
        for m in one.evaluation.measures
        if (m.name, m.by, m.group, m.unit) == (name, by, group, unit) and m.value is not None
    ]


def _interval(m: Measure) -> Interval | None:
    return None if m.low is None or m.high is None else (m.low, m.high)
