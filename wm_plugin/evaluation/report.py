"""A self-contained HTML report: measures and curves of each arm, predictions, and rollouts coloured by the tokens' authors.

The file loads nothing from elsewhere, and all text is escaped, because predictions and rollouts are not trusted. Needs the extra
`report`.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from importlib import resources
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError
from wm_plugin.tokens.view import LEGEND, Token, to_html, visible
from wm_plugin.trajectories.outputs import write_text

try:
    import jinja2
    import matplotlib
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as _error:
    if _error.name not in ("jinja2", "markupsafe", "matplotlib"):
        raise
    _MISSING: str | None = _error.name
else:
    _MISSING = None

COLOURS = ("#c2410c", "#0f6cbd", "#15803d", "#7e22ce", "#a16207", "#be185d", "#0e7490", "#4b5563")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MAX_MARKERS = 20  # with more points, only the line is drawn


@dataclass(frozen=True)
class Series:
    """One arm of a curve."""

    arm: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Curve:
    """One figure. `limits` of the vertical axis: None fits the data."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    x_label: str = "step"
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Comparison:
    """A context, the real observation after it, and the prediction of each arm (arm -> text)."""

    context: str
    real: str
    predicted: Mapping[str, str]


@dataclass(frozen=True)
class Sample:
    """One rollout as coloured tokens."""

    title: str
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Report:
    """The contents of the report, from top to bottom; empty parts are left out.

    Attributes:
        title: The heading.
        subtitle: One line that describes the runs.
        summary: Sentences, the most important first.
        arms: The table: one mapping of column to value per arm, all with the same columns.
        curves: One figure each; an arm has the same colour in all figures.
        comparisons: Predictions beside the real observations; characters that differ are marked.
        samples: Rollouts.
        notes: Explanations in small print.
    """

    title: str
    subtitle: str = ""
    summary: Sequence[str] = ()
    arms: Sequence[Mapping[str, str | float]] = ()
    curves: Sequence[Curve] = ()
    comparisons: Sequence[Comparison] = ()
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = field(default=())


def check_extra(needs: str = "the report", extra: str = "report") -> None:
    """Raise MissingExtraError, naming `extra`, where matplotlib or jinja2 is not installed."""
    if _MISSING:
        raise MissingExtraError(needs, _MISSING, extra)


def render(report: Report) -> str:
    """The HTML document.

    Raises:
        MissingExtraError: matplotlib or jinja2 is not installed.
        ValueError: The arms of the table differ in their columns.
    """
    check_extra()
    columns = list(report.arms[0]) if report.arms else []
    if any(list(row) != columns for row in report.arms):
        raise ValueError("the arms of a report differ in their columns")
    arms = list(dict.fromkeys(series.arm for curve in report.curves for series in curve.series))
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        resources.files("wm_plugin.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    )
    shown: dict[str, Any] = {
        "report": report,
        "columns": columns,
        "rows": [[_cell(row[column]) for column in columns] for row in report.arms],
        "legend": [(arm, COLOURS[index % len(COLOURS)]) for index, arm in enumerate(arms)],
        "figures": [(curve, Markup(_svg(curve, arms))) for curve in report.curves],
        "comparisons": [
            (pair, [(arm, difference(text, pair.real)) for arm, text in pair.predicted.items()])
            for pair in report.comparisons
        ],
        "samples": [(sample.title, Markup(to_html(sample.tokens))) for sample in report.samples],
        "token_kinds": list(LEGEND.items()),
        "visible": visible,
    }
    return template.render(shown)


def write(report: Report, path: str | Path) -> Path:
    """Write the HTML document to `path`."""
    path = Path(path)
    write_text(path, render(report))
    return path


def difference(predicted: str, real: str) -> list[tuple[str, bool]]:
    """`predicted` in pieces (text, wrong): compared character by character if both texts have the same length, else aligned."""
    if len(predicted) == len(real):
        wrong = [a != b for a, b in zip(predicted, real, strict=True)]
    else:
        wrong = [True] * len(predicted)
        for block in SequenceMatcher(a=predicted, b=real).get_matching_blocks():
            wrong[block.a : block.a + block.size] = [False] * block.size
    pieces: list[tuple[str, bool]] = []
    for character, flag in zip(predicted, wrong, strict=True):
        # A wrong line end would be invisible, and would shift the following lines.
        shown = "↵" if flag and character == "\n" else visible(character)
        if pieces and pieces[-1][1] == flag:
            pieces[-1] = (pieces[-1][0] + shown, flag)
        else:
            pieces.append((shown, flag))
    return pieces


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _svg(curve: Curve, arms: Sequence[str]) -> str:
    """The curve as inline SVG, without any text from the caller; the page itself shows title and legend."""
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "wm", "font.family": "sans-serif", "font.size": 11}
    ):
        figure = Figure(figsize=(4.6, 2.6), layout="constrained")
        axes = figure.subplots()
        for series in curve.series:
            style = arms.index(series.arm)
            marker = MARKERS[style % len(MARKERS)] if len(series.x) <= _MAX_MARKERS else None
            axes.plot(
                series.x, series.y, color=COLOURS[style % len(COLOURS)], marker=marker, markersize=4, linewidth=1.6
            )
        if all(float(x).is_integer() for series in curve.series for x in series.x):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if curve.limits:
            axes.set_ylim(curve.limits)
        axes.grid(color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#9ca3af")
        axes.tick_params(color="#9ca3af", labelcolor="#4b5563")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
