"""A report's figures as inline SVG: lines with their noise, and each arm's values before and after a change.

The page's style colours them, for light and dark. Axes of lines begin at 0, unless values are negative: an axis that fits the
data makes noise look like a difference. Texts are escaped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from wm_plugin.runtime.page import short
from wm_plugin.tokens.view import visible

COLOURS = 8  # of arms, in the page's style; 0 is for what is no arm
Interval = tuple[float, float]

_WIDTH, _HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 62, 12, 26
_MAX_POINTS = 400  # of a line
_MAX_MARKERS = 20  # with more points, only the line is drawn
_SHAPES = ((), ((-1, -1), (1, -1), (1, 1), (-1, 1)), ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)))  # the first: a circle
LARGEST = 1e12  # of a value that is drawn
_ROW = 50  # height of an arm in `changes`


@dataclass(frozen=True)
class Series:
    """One arm of a curve."""

    arm: str
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[Interval] = ()  # the lower and upper limit of each point, where its noise is known
    # the lines (x, y) of single runs, of which this one is the mean; drawn faintly
    own: Sequence[tuple[Sequence[float], Sequence[float]]] = ()


@dataclass(frozen=True)
class Curve:
    """Lines over steps. `percent`: values are shares, on an axis from 0% to 100%."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    x_label: str = "step"
    percent: bool = False


@dataclass(frozen=True)
class Change:
    """A share of one arm before and after; `interval` of the value after."""

    arm: str
    before: float
    after: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Changes:
    """Each arm's share before and after the same change, on an axis from 0% to 100%. `x_label` says what the marks are."""

    title: str
    changes: Sequence[Change]
    x_label: str = ""


def lines(curve: Curve, styles: Mapping[str, int]) -> str:
    """Draw a curve as SVG; `styles` numbers each arm's colour. Points that are no numbers are left out."""
    series = [(one, _points(one)) for one in curve.series]
    own = [(one, _points(Series(one.arm, x, y))) for one in curve.series for x, y in one.own]
    points = [point for _, several in [*series, *own] for point in several]
    xs = _steps([x for x, *_ in points])
    ys = axis([1.0] if curve.percent else [value for _, *values in points for value in values])

    def across(x: float) -> float:
        return _LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (_WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in ys:
        kind = "axis" if tick == 0 else "rule"
        parts.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        )
        label = f"{tick:.0%}" if curve.percent else tick_label(tick, max(map(abs, ys)))
        parts.append(f'<text x="{_LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    parts += [
        f'<text x="{across(tick):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{tick_label(tick)}</text>' for tick in xs
    ]
    for one, several in own:
        line = _path([(across(x), up(y)) for x, y, *_ in several])
        parts.append(f'<g class="arm-{styles[one.arm]}"><polyline class="line faint" points="{line}"/></g>')
    ends = []
    for one, several in series:
        if not several:
            continue
        style = styles[one.arm]
        drawn = [(across(x), up(y), up(low), up(high)) for x, y, low, high in several]
        parts.append(f'<g class="arm-{style}">')
        if one.band:
            edge = [(x, high) for x, _, _, high in drawn] + [(x, low) for x, _, low, _ in reversed(drawn)]
            parts.append(f'<polygon class="band" points="{_path(edge)}"/>')
        parts.append(f'<polyline class="line" points="{_path([(x, y) for x, y, *_ in drawn])}"/>')
        if len(drawn) <= _MAX_MARKERS:
            parts += [marker(style, x, y) for x, y, *_ in drawn]
        parts.append("</g>")
        ends.append((drawn[-1][1], style, value_label(several[-1][1], curve.percent)))
    parts += [
        f'<text class="value arm-{style}" x="{_WIDTH - _RIGHT + 7}" y="{y + 4:.1f}">{value}</text>'
        for y, style, value in _apart(ends)
    ]
    label = "; ".join(
        f"{short(one.arm)}: {value_label(several[0][1], curve.percent)} to {value_label(several[-1][1], curve.percent)}"
        for one, several in series
        if several
    )
    return svg(_WIDTH, _HEIGHT, f"{curve.title}. {label}", parts)


def changes(figure: Changes, styles: Mapping[str, int]) -> str:
    """Draw each arm's two values as SVG: a hollow mark before, a full one after, and the latter's interval."""
    left, right = 14, 14
    height = len(figure.changes) * _ROW + _TOP + _BOTTOM

    def across(x: float) -> float:
        return left + min(max(x, 0.0), 1.0) * (_WIDTH - left - right)

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(tick, "middle")
        parts += upright(tick, across(tick), _TOP, height, f"{tick:.0%}", anchor)
    for row, one in enumerate(figure.changes):
        style, y = styles[one.arm], _TOP + row * _ROW + 36
        before, after = across(one.before), across(one.after)
        parts.append(f'<text class="name" x="{left + 6}" y="{y - 18}">{name_label(one.arm)}</text>')
        parts.append(
            f'<text class="value arm-{style}" x="{_WIDTH - right - 6}" y="{y - 18}" text-anchor="end">'
            f"{one.before:.0%} → {one.after:.0%}</text>"
        )
        parts.append(f'<g class="arm-{style}">')
        if one.interval:
            low, high = map(across, one.interval)
            parts.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<line class="line" x1="{before:.1f}" x2="{after:.1f}" y1="{y}" y2="{y}"/>')
        parts += [marker(style, before, y, hollow=True), marker(style, after, y, size=5.5), "</g>"]
    label = "; ".join(f"{short(one.arm)}: {one.before:.0%} to {one.after:.0%}" for one in figure.changes)
    return svg(_WIDTH, height, f"{figure.title}. {label}", parts)


def upright(tick: float, x: float, top: int, height: int, label: str, anchor: str = "middle") -> list[str]:
    """Draw a tick of a horizontal axis: its line through the figure, and its label below."""
    kind = "axis" if tick == 0 else "rule"
    return [
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - _BOTTOM}"/>',
        f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{label}</text>',
    ]


def marker(style: int, x: float, y: float, *, size: float = 4, hollow: bool = False) -> str:
    """Draw an arm's mark at a point: colours alone do not tell arms apart for everybody."""
    kind = 'class="dot hollow"' if hollow else 'class="dot"'
    shape = (style - 1) % len(_SHAPES)
    if not shape:
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    return f'<polygon {kind} points="{_path([(x + size * dx, y + size * dy) for dx, dy in _SHAPES[shape]])}"/>'


def swatch(style: int) -> str:
    """Draw an arm's line and mark, for a legend."""
    return (
        f'<svg class="swatch arm-{style}" viewBox="0 0 26 12" aria-hidden="true">'
        f'<line class="line" x1="0" x2="26" y1="6" y2="6"/>{marker(style, 13, 6)}</svg>'
    )


def svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """Put a figure together; `label` says in words what it shows."""
    text = escape(visible(label))
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text}">{"".join(parts)}</svg>'


def tick_label(value: float, largest: float = 0.0) -> str:
    """Write a round number for an axis, in few characters, and in the unit of the largest one, if that is given."""
    size = abs(value)
    for factor, least, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e5, "k")):
        if size >= max(factor, 1e6) or (value and largest >= least):
            return f"{value / factor:,.6g}{letter}"
    if 0 < size < 1e-3:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:,.10g}"


def _points(series: Series) -> list[tuple[float, float, float, float]]:
    """Return (x, y, lower limit, upper limit) of the points that are numbers, evenly thinned out; without limits they are y."""
    points = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        low, high = series.band[index] if series.band else (y, y)
        if all(abs(value) <= LARGEST for value in (x, y, low, high)):  # NaN is not
            points.append((float(x), float(y), float(low), float(high)))
    step = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::step][::-1]  # the last one stays


def axis(values: Sequence[float]) -> list[float]:
    """Return round ticks from at most 0 to at least the largest value, in ascending order; two at least."""
    low, high = min([*values, 0.0]), max([*values, 0.0])
    high = high if high - low > 1 / LARGEST else 1.0
    step = _step(low, high)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _steps(values: Sequence[float]) -> list[float]:
    """Return ticks of a horizontal axis that begins and ends with the values: both ends, and round ones between."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    step = _step(low, high, whole=all(value.is_integer() for value in values))
    between = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [low, *(tick for tick in between if low + step / 2 < tick < high - step / 2), max(high, low + step)]


def _step(low: float, high: float, *, whole: bool = False) -> float:
    """Return the round distance of at most six ticks between two values."""
    span = high - low if high - low > 1 / LARGEST else 1.0
    power: float = 10.0 ** (math.floor(math.log10(span)) - 1)
    steps = (factor * power * size for size in (1.0, 10.0, 100.0) for factor in (1, 2, 2.5, 5))
    return next(step for step in steps if span / step <= 5 and (not whole or (step >= 1 and step.is_integer())))


def _apart(labels: list[tuple[float, int, str]], distance: float = 14) -> list[tuple[float, int, str]]:
    """Move labels (y, ...) down until none covers the next, then up if the last has left the figure."""
    moved: list[tuple[float, int, str]] = []
    for y, *rest in sorted(labels):
        moved.append((max(y, moved[-1][0] + distance) if moved else y, *rest))  # type: ignore[arg-type]
    beyond = max(0.0, moved[-1][0] - (_HEIGHT - _BOTTOM)) if moved else 0.0
    return [(y - beyond, style, value) for y, style, value in moved]


def value_label(value: float, percent: bool) -> str:
    """Write a number beside a mark."""
    if percent:
        return f"{value:.0%}"
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        return tick_label(float(f"{value:.2e}"))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{3 if abs(value) >= 1 else 2}g}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def name_label(text: str, longest: int = 40) -> str:
    """Escape and shorten a name."""
    return escape(visible(short(text, longest)))
