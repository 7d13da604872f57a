"""A report's figures as inline SVG: lines with their noise, values before and after a change, intervals, and heat maps.

The page's style colours them, for light and dark. Axes of lines begin at 0, unless values are negative: an axis that fits the
data makes noise look like a difference. Texts are escaped.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from wm_plugin.runtime.page import short
from wm_plugin.tokens.view import visible

COLOURS = 8  # of arms, in the page's style; 0 is for what is no arm
LARGEST = 1e12  # of a value that is drawn
MAX_ROWS, MAX_CELLS = 16, 160  # of intervals; in a row or a column of a heat map
Interval = tuple[float, float]
Styles = Mapping[str, int]  # the number of each arm's colour
Point = tuple[float, float, float, float]  # x, y, and y's limits
Label = tuple[float, float, int, str]  # x, y, style and text

_WIDTH, _BOTTOM = 380, 26
_LABEL, _LABEL_WIDTH = 14.0, 48.0
_MAX_POINTS = 400  # of a line
_MAX_MARKERS = 20  # with more points, only the line is drawn
_SHAPES = ((), ((-1, -1), (1, -1), (1, 1), (-1, 1)), ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)))  # the first: a circle


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

    @property
    def arms(self) -> list[str]:
        return [one.arm for one in self.series]

    def draw(self, styles: Styles) -> str:
        """Draw the curve; points that are no numbers are left out."""
        left, right, top, height = 44, 62, 12, 210
        series = [(one, _points(one)) for one in self.series]
        own = [(one, _points(Series(one.arm, x, y))) for one in self.series for x, y in one.own]
        points = [point for _, several in [*series, *own] for point in several]
        xs = _steps([x for x, *_ in points])
        ys = _axis([1.0] if self.percent else [value for _, *values in points for value in values])
        across = _scale(xs, left, _WIDTH - right, clip=False)
        up = _scale(ys, height - _BOTTOM, top, clip=False)
        parts = []
        for tick, label in _labels(ys, self.percent):
            y = up(tick)
            parts.append(_tag("line", class_=_kind(tick), x1=left, x2=_WIDTH - right, y1=y, y2=y))
            parts.append(_text(left - 6, y + 4, label, "end"))
        parts += [_text(across(tick), height - 6, _tick(tick), "middle") for tick in xs]
        for one, several in own:
            line = _path((across(x), up(y)) for x, y, *_ in several)
            parts.append(_group(styles[one.arm], [_tag("polyline", class_="line faint", points=line)]))
        ends = []
        for one, several in series:
            if not several:
                continue
            style, drawn = styles[one.arm], [(across(x), up(y), up(low), up(high)) for x, y, low, high in several]
            inside = [_tag("polyline", class_="line", points=_path((x, y) for x, y, *_ in drawn))]
            if one.band:
                edge = [(x, high) for x, _, _, high in drawn] + [(x, low) for x, _, low, _ in reversed(drawn)]
                inside.insert(0, _tag("polygon", class_="band", points=_path(edge)))
            if len(drawn) <= _MAX_MARKERS:
                inside += [_marker(style, x, y) for x, y, *_ in drawn]
            parts.append(_group(style, inside))
            ends.append((*drawn[-1][:2], style, value_label(several[-1][1], self.percent)))
        for x, y, style, value in _apart(ends, top, height - _BOTTOM):
            parts.append(_text(x + 7, y + 4, value, class_=f"value arm-{style}"))
        words = [
            f"{short(one.arm)}: {' to '.join(value_label(several[end][1], self.percent) for end in (0, -1))}"
            for one, several in series
            if several
        ]
        return _svg(_WIDTH, height, self.title, "; ".join(words), parts)


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
    arms = ()  # drawn in the colours that other figures give them

    def draw(self, styles: Styles) -> str:
        """Draw a hollow mark before, a full one after, and the latter's interval."""
        left, right, top, row = 14, 14, 12, 50
        height = len(self.changes) * row + top + _BOTTOM
        ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
        across = _scale(ticks, left, _WIDTH - right)
        parts = _uprights(_labels(ticks, True), across, top, height, {0.0: "start", 1.0: "end"})
        for place, one in enumerate(self.changes):
            style, y = styles[one.arm], top + place * row + 36
            before, after = across(one.before), across(one.after)
            change = f"{one.before:.0%} → {one.after:.0%}"
            parts.append(_text(left + 6, y - 18, _name(one.arm), class_="name"))
            parts.append(_text(_WIDTH - right - 6, y - 18, change, "end", class_=f"value arm-{style}"))
            inside = [_range(one.interval, across, y), _tag("line", class_="line", x1=before, x2=after, y1=y, y2=y)]
            inside += [_marker(style, before, y, class_="dot hollow"), _marker(style, after, y, size=5.5)]
            parts.append(_group(style, inside))
        words = "; ".join(f"{short(one.arm)}: {one.before:.0%} to {one.after:.0%}" for one in self.changes)
        return _svg(_WIDTH, height, self.title, words, parts)


@dataclass(frozen=True)
class Value:
    """One arm's value in a row, with its interval."""

    arm: str
    value: float
    interval: Interval | None = None

    @property
    def is_drawn(self) -> bool:
        return all(abs(number) <= LARGEST for number in (self.value, *(self.interval or ())))  # NaN is not


@dataclass(frozen=True)
class Intervals:
    """Values of arms, by row, with their intervals as bars. `percent`: shares, on an axis from 0% to 100%."""

    title: str
    rows: Sequence[tuple[str, Sequence[Value]]]
    unit: str
    x_label: str = ""
    percent: bool = False

    @property
    def arms(self) -> list[str]:
        return [value.arm for _, values in self.rows for value in values]

    def draw(self, styles: Styles) -> str:
        """Draw rows of marks with bars; rows beyond sixteen are left out."""
        left, right, top, head, line, gap = 14, 52, 8, 18, 17, 8
        rows = [(name, [one for one in values if one.is_drawn]) for name, values in self.rows[:MAX_ROWS]]
        values = [one for _, several in rows for one in several]
        ticks = _axis([1.0] if self.percent else [x for one in values for x in (one.value, *(one.interval or ()))])
        height = top + _BOTTOM + len(rows) * (head + gap) + len(values) * line
        across = _scale(ticks, left, _WIDTH - right)
        parts = _uprights(_labels(ticks, self.percent), across, top, height)
        y = top
        for name, several in rows:
            parts.append(_text(left + 4, y + 13, _name(name, 52), class_="name"))
            y += head
            for one in several:
                style, middle = styles[one.arm], y + line / 2
                mark = _marker(style, across(one.value), middle)
                parts.append(_group(style, [_range(one.interval, across, middle), mark]))
                shown = value_label(one.value, self.percent)
                parts.append(_text(_WIDTH - 2, middle + 4, shown, "end", class_=f"value arm-{style}"))
                y += line
            y += gap
        words = [
            f"{short(name)}, {short(one.arm)}: {value_label(one.value, self.percent)}"
            for name, several in rows
            for one in several
        ]
        return _svg(_WIDTH, height, self.title, "; ".join(words), parts)


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
    arms = ()

    def draw(self, _styles: Styles) -> str:
        """Draw the map, with the scale of its colours below it. Pointing at a cell shows its number."""
        left, right, top, cell, full = 132, 12, 8, 22, 900
        rows, columns = self.rows[:MAX_CELLS], self.columns[:MAX_CELLS]
        values = [[_number(value) for value in row[:MAX_CELLS]] for row in self.values[:MAX_CELLS]]
        largest = max((value for row in values for value in row if value is not None), default=0.0)
        scale = max(largest, self.largest)
        scale = scale if scale > 0 else 1.0
        width = (full - left - right) / max(len(columns), 1)
        bottom = top + len(rows) * cell
        parts = []
        for number, (name, row) in enumerate(zip(rows, values, strict=True)):
            y = top + number * cell
            parts.append(_text(left - 8, y + 15, _name(name, 20), "end"))
            for place, (column, value) in enumerate(zip(columns, row, strict=True)):
                size = {"x": left + place * width, "y": y, "width": max(width - 1, 1.0), "height": cell - 1}
                if value is None:
                    parts.append(_tag("rect", "", class_="none", **size))
                    continue
                title = _tag("title", f"{_name(name)}, {_name(column)}: {self._shown(value)}")
                parts.append(_tag("rect", title, class_="cell", fill_opacity=f"{max(value, 0.0) / scale:.3f}", **size))
        every = max(1, -(-len(columns) // max(1, int((full - left) / 44))))
        for place in range(0, len(columns), every):
            parts.append(_text(left + (place + 0.5) * width, bottom + 16, _name(columns[place], 12), "middle"))
        parts.append(_text(left - 8, bottom + 16, _name(self.y_label, 20), "end"))
        for step in range(6):
            x, share = left + step * 60, step / 5
            size = {"x": x, "y": bottom + 30, "width": 59, "height": 10}
            parts.append(_tag("rect", "", class_="cell", fill_opacity=f"{share:.3f}", **size))
            parts.append(_text(x + 30, bottom + 54, self._shown(scale * step / 5), "middle"))
        return _svg(full, bottom + 60, self.title, f"At most {self._shown(largest)}", parts)

    def _shown(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else value_label(value, False)


Figure = Curve | Changes | Intervals | Heat


def swatch(style: int) -> str:
    """Draw an arm's line and mark, for a legend."""
    inside = _tag("line", class_="line", x1=0, x2=26, y1=6, y2=6) + _marker(style, 13, 6)
    return _tag("svg", inside, class_=f"swatch arm-{style}", viewBox="0 0 26 12", aria_hidden="true")


def value_label(value: float, percent: bool) -> str:
    """Write a number beside a mark."""
    if percent:
        return f"{value:.0%}"
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        return _tick(float(f"{value:.2e}"))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{3 if abs(value) >= 1 else 2}g}"


def _tag(name: str, inside: str | None = None, /, **attributes: object) -> str:
    """Write an element; `class_` and `aria_label` are attributes `class` and `aria-label`."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value:.1f}"'
        if isinstance(value, float)
        else f' {key.rstrip("_").replace("_", "-")}="{value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{shown}/>" if inside is None else f"<{name}{shown}>{inside}</{name}>"


def _text(x: float, y: float, text: str, anchor: str = "", class_: str = "") -> str:
    own = ({"class_": class_} if class_ else {}) | {"x": x, "y": y} | ({"text_anchor": anchor} if anchor else {})
    return _tag("text", text, **own)


def _group(style: int, inside: Sequence[str]) -> str:
    return _tag("g", "".join(inside), class_=f"arm-{style}")


def _svg(width: int, height: int, title: str, words: str, parts: Sequence[str]) -> str:
    """Put a figure together; `words` say what it shows."""
    label = escape(visible(f"{title}. {words}"))
    return _tag("svg", "".join(parts), viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def _uprights(
    labels: Iterable[tuple[float, str]],
    across: Callable[[float], float],
    top: int,
    height: int,
    anchors: Mapping[float, str] = {},
) -> list[str]:
    """Draw the ticks of a horizontal axis: each one's line through the figure, and its label below."""
    parts = []
    for tick, label in labels:
        x = across(tick)
        parts.append(_tag("line", class_=_kind(tick), x1=x, x2=x, y1=top, y2=height - _BOTTOM))
        parts.append(_text(x, height - 6, label, anchors.get(tick, "middle")))
    return parts


def _range(interval: Interval | None, across: Callable[[float], float], y: float) -> str:
    if interval is None:
        return ""
    return _tag("line", class_="range", x1=across(interval[0]), x2=across(interval[1]), y1=y, y2=y)


def _marker(style: int, x: float, y: float, *, size: float = 4, class_: str = "dot") -> str:
    """Draw an arm's mark at a point: colours alone do not tell arms apart for everybody."""
    shape = (style - 1) % len(_SHAPES)
    if not shape:
        return _tag("circle", class_=class_, cx=float(x), cy=float(y), r=size)
    return _tag("polygon", class_=class_, points=_path((x + size * dx, y + size * dy) for dx, dy in _SHAPES[shape]))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _kind(tick: float) -> str:
    return "axis" if tick == 0 else "rule"


def _name(text: str, longest: int = 40) -> str:
    return escape(visible(short(text, longest)))


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _labels(ticks: Sequence[float], percent: bool) -> list[tuple[float, str]]:
    largest = max(map(abs, ticks))
    return [(tick, f"{tick:.0%}" if percent else _tick(tick, largest)) for tick in ticks]


def _tick(value: float, largest: float = 0.0) -> str:
    """Write a round number for an axis, in few characters, and in the unit of the largest one, if that is given."""
    size = abs(value)
    for factor, least, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e5, "k")):
        if size >= max(factor, 1e6) or (value and largest >= least):
            return f"{value / factor:,.6g}{letter}"
    if 0 < size < 1e-3:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:,.10g}"


def _points(series: Series) -> list[Point]:
    """Return the points that are numbers, evenly thinned out; without limits they are y."""
    points = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        low, high = series.band[index] if series.band else (y, y)
        if all(abs(value) <= LARGEST for value in (x, y, low, high)):  # NaN is not
            points.append((float(x), float(y), float(low), float(high)))
    step = -(-len(points) // _MAX_POINTS) or 1
    return points[::-1][::step][::-1]  # the last one stays


def _scale(ticks: Sequence[float], start: float, end: float, *, clip: bool = True) -> Callable[[float], float]:
    """Return what places a value of an axis between two coordinates; `clip`: values beyond the axis are placed at its end."""

    def place(value: float) -> float:
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return start + (min(max(share, 0.0), 1.0) if clip else share) * (end - start)

    return place


def _axis(values: Sequence[float]) -> list[float]:
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


def _apart(labels: Sequence[Label], top: float, lowest: float) -> list[Label]:
    """Move labels that cover each other up and down, each group around its middle and inside the figure."""
    groups: list[list[Label]] = []
    for label in sorted(labels, key=lambda label: label[1]):
        group = [label]
        # a group that reaches another one becomes one with it
        for other in [one for one in groups if abs(one[0][0] - label[0]) < _LABEL_WIDTH]:
            if _place(other, top, lowest)[-1] + _LABEL > _place(group, top, lowest)[0]:
                groups.remove(other)
                group = sorted(other + group, key=lambda label: label[1])
        groups.append(group)
    return [
        (x, y, style, value)
        for group in groups
        for (x, _, style, value), y in zip(group, _place(group, top, lowest), strict=True)
    ]


def _place(group: Sequence[Label], top: float, lowest: float) -> list[float]:
    """Return the heights of a group's labels."""
    size = (len(group) - 1) * _LABEL
    middle = sum(label[1] for label in group) / len(group)
    first = max(top, min(middle - size / 2, lowest - size))
    return [first + number * _LABEL for number in range(len(group))]
