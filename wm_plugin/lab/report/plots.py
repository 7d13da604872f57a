"""More figures as inline SVG: values with their intervals, and heat maps. As in `chart`, texts are escaped."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wm_plugin.lab.report.chart import (
    LARGEST,
    Interval,
    axis,
    marker,
    name_label,
    svg,
    tick_label,
    upright,
    value_label,
)
from wm_plugin.runtime.page import short

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 380, 14, 52, 8, 26
_HEAD, _LINE, _GAP = 18, 17, 8  # heights of a row's name, of an arm in it, and between rows
MAX_ROWS = 16
_HEAT_LEFT, _HEAT_RIGHT, _CELL = 132, 12, 22
_HEAT_WIDTH = 900
MAX_CELLS = 160  # in a row or a column


@dataclass(frozen=True)
class Value:
    """One arm's value in a row, with its interval."""

    arm: str
    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Intervals:
    """Values of arms, by row, with their intervals as bars. `percent`: shares, on an axis from 0% to 100%."""

    title: str
    rows: Sequence[tuple[str, Sequence[Value]]]
    unit: str
    x_label: str = ""
    percent: bool = False


@dataclass(frozen=True)
class Heat:
    """Numbers in rows and columns as darkness: none at 0, full at `largest` or the largest number."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    unit: str
    x_label: str
    y_label: str
    percent: bool = False
    largest: float = 0.0


def intervals(figure: Intervals, styles: Mapping[str, int]) -> str:
    """Draw rows of marks with bars as SVG; `styles` numbers each arm's colour. Rows beyond sixteen are left out."""
    rows = [(name, [one for one in values if _is_drawn(one)]) for name, values in figure.rows[:MAX_ROWS]]
    numbers = [number for _, values in rows for one in values for number in (one.value, *(one.interval or ()))]
    ticks = axis([1.0] if figure.percent else numbers)
    height = _TOP + _BOTTOM + sum(_HEAD + _LINE * len(values) + _GAP for _, values in rows)

    def across(x: float) -> float:
        return _LEFT + min(max((x - ticks[0]) / (ticks[-1] - ticks[0]), 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    parts = []
    for tick in ticks:
        label = f"{tick:.0%}" if figure.percent else tick_label(tick, max(map(abs, ticks)))
        parts += upright(tick, across(tick), _TOP, height, label)
    y = _TOP
    for name, values in rows:
        parts.append(f'<text class="name" x="{_LEFT + 4}" y="{y + 13}">{name_label(name, 52)}</text>')
        y += _HEAD
        for one in values:
            style, middle = styles[one.arm], y + _LINE / 2
            parts.append(f'<g class="arm-{style}">')
            if one.interval:
                low, high = map(across, one.interval)
                parts.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
            parts += [marker(style, across(one.value), middle), "</g>"]
            text = value_label(one.value, figure.percent)
            parts.append(
                f'<text class="value arm-{style}" x="{_WIDTH - 2}" y="{middle + 4}" text-anchor="end">{text}</text>'
            )
            y += _LINE
        y += _GAP
    label = "; ".join(
        f"{short(name)}, {short(one.arm)}: {value_label(one.value, figure.percent)}"
        for name, values in rows
        for one in values
    )
    return svg(_WIDTH, height, f"{figure.title}. {label}", parts)


def heat(figure: Heat) -> str:
    """Draw a heat map as SVG, with the scale of its colours below it. Pointing at a cell shows its number."""
    rows, columns = figure.rows[:MAX_CELLS], figure.columns[:MAX_CELLS]
    values = [[_number(value) for value in row[:MAX_CELLS]] for row in figure.values[:MAX_CELLS]]
    largest = max((value for row in values for value in row if value is not None), default=0.0)
    scale = max(largest, figure.largest)
    scale = scale if scale > 0 else 1.0
    width = (_HEAT_WIDTH - _HEAT_LEFT - _HEAT_RIGHT) / max(len(columns), 1)
    bottom = _TOP + len(rows) * _CELL
    parts = []
    for number, (name, row) in enumerate(zip(rows, values, strict=True)):
        y = _TOP + number * _CELL
        parts.append(f'<text x="{_HEAT_LEFT - 8}" y="{y + 15}" text-anchor="end">{name_label(name, 20)}</text>')
        for place, (column, value) in enumerate(zip(columns, row, strict=True)):
            x = _HEAT_LEFT + place * width
            cell = f'x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" height="{_CELL - 1}"'
            if value is None:
                parts.append(f'<rect class="none" {cell}></rect>')
                continue
            text = f"{name_label(name)}, {name_label(column)}: {_shown(value, figure.percent)}"
            shade = max(value, 0.0) / scale
            parts.append(f'<rect class="cell" fill-opacity="{shade:.3f}" {cell}><title>{text}</title></rect>')
    every = max(1, -(-len(columns) // max(1, int((_HEAT_WIDTH - _HEAT_LEFT) / 44))))
    for place in range(0, len(columns), every):
        x = _HEAT_LEFT + (place + 0.5) * width
        text = name_label(columns[place], 12)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    parts.append(
        f'<text x="{_HEAT_LEFT - 8}" y="{bottom + 16}" text-anchor="end">{name_label(figure.y_label, 20)}</text>'
    )
    steps = 5
    for step in range(steps + 1):
        x, value = _HEAT_LEFT + step * 60, scale * step / steps
        cell = f'x="{x}" y="{bottom + 30}" width="59" height="10"'
        parts.append(f'<rect class="cell" fill-opacity="{step / steps:.3f}" {cell}></rect>')
        text = _shown(value, figure.percent)
        parts.append(f'<text x="{x + 30}" y="{bottom + 54}" text-anchor="middle">{text}</text>')
    return svg(_HEAT_WIDTH, bottom + 60, f"{figure.title}. At most {_shown(largest, figure.percent)}", parts)


def _is_drawn(one: Value) -> bool:
    return all(abs(number) <= LARGEST for number in (one.value, *(one.interval or ())))  # NaN is not


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _shown(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else value_label(value, False)
