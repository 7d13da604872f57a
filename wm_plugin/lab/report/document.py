"""A self-contained HTML report: one sentence and one picture, how to read them, then figures, predictions and rollouts.

The file loads nothing from elsewhere, and all text is escaped, because predictions and rollouts are untrusted. It needs the extra
`report`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import write_text
from wm_plugin.lab.report.chart import COLOURS, Changes, Curve, Figure, Intervals, Styles, swatch
from wm_plugin.runtime import page
from wm_plugin.tokens.view import LEGEND, Token, to_html, visible

_LONGEST = 1200  # characters of a prediction that are compared and shown
_BOARD = 40  # characters of a line; a text with longer lines is prose, and needs a wider column
_TOKENS = 4000  # of a rollout


@dataclass(frozen=True)
class Comparison:
    """A context, the real observation after it, and the prediction of each arm (arm -> text)."""

    context: str
    real: str
    predicted: Mapping[str, str]
    title: str = ""
    action: str = ""  # the action in the context, if the context does not end with it


@dataclass(frozen=True)
class Sample:
    """One rollout as coloured tokens."""

    title: str
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Table:
    """Rows of cells; what follows a line end in a cell is small print. `words`: the columns that hold sentences."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = ()


@dataclass(frozen=True)
class Section:
    """Figures and tables under a heading. Readers open a folded one. `detailed`: arms with their details."""

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    folded: bool = False
    detailed: bool = False


@dataclass(frozen=True)
class Report:
    """The contents of the report, from top to bottom; empty parts are left out."""

    title: str
    headline: str = ""  # the result, in one plain sentence
    subtitle: str = ""  # one line that describes the runs
    picture: Sequence[Figure] = ()  # one or two figures that show the headline
    reading: Sequence[str] = ()  # how to read the page, in sentences
    glyphs: Sequence[tuple[str, str]] = ()  # what the characters of observations mean: (characters, meaning)
    measured: Table | None = None
    summary: Sequence[str] = ()  # sentences under the table, the most important first
    # predictions beside the real observations; characters that differ are marked
    comparisons: Sequence[Comparison] = ()
    comparing: str = ""  # how the shown predictions were chosen
    curves: Sequence[Curve] = ()  # one figure each; an arm has the same colour in all figures
    sections: Sequence[Section] = ()
    samples: Sequence[Sample] = ()  # rollouts. `masked`: their tokens say which of them count
    masked: bool = True
    appendix: Sequence[Section] = ()  # as `sections`, at the end
    notes: Sequence[str] = ()  # explanations in small print
    details: Mapping[str, str] = field(default_factory=dict)  # an arm's small print, by its name


def render(report: Report) -> str:
    """Return the HTML document; raise MissingExtraError without jinja2."""
    page.check_extra("the report")
    styles = _styles(report)
    curves = [Section("Curves", figures=report.curves, detailed=True)] if report.curves else []
    return page.render(
        "wm_plugin.lab.report",
        "report.html",
        "the report",
        title=report.title,
        report=report,
        legend=[(arm, style, report.details.get(arm, ""), page.markup(swatch(style))) for arm, style in styles.items()],
        contents=[],  # the template adds its headings
        picture=_drawn(report.picture, styles),
        sections=[_on_page(section, styles) for section in report.sections],
        curves=[_on_page(section, styles) for section in curves],
        appendix=[_on_page(section, styles) for section in report.appendix],
        comparisons=[
            (pair, [(arm, *_compared(text, pair.real)) for arm, text in pair.predicted.items()], _is_prose(pair))
            for pair in report.comparisons
        ],
        samples=[
            (sample.title, page.markup(to_html(sample.tokens, style=False, limit=_TOKENS))) for sample in report.samples
        ],
        token_kinds=list(LEGEND.items()),
    )


def write(report: Report, path: str | Path) -> Path:
    """Write the HTML document to `path`."""
    path = Path(path)
    write_text(path, render(report))
    return path


def difference(predicted: str, real: str) -> list[tuple[str, bool]]:
    """Split `predicted` into (text, wrong), by character if both texts have the same length, else aligned.

    Only the beginnings, which a page shows, are compared.
    """
    predicted, real = predicted[:_LONGEST], real[:_LONGEST]
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


def _compared(predicted: str, real: str) -> tuple[list[tuple[str, bool]], str, str]:
    """Return a prediction in pieces, what is left out of it, and whether it is right."""
    left = len(predicted) - _LONGEST
    hidden = f"{left:,} of {len(predicted):,} characters are not shown" if left > 0 else ""
    if predicted == real:
        verdict = "exact"
    elif len(predicted) != len(real):
        verdict = f"wrong: {len(predicted):,} characters, not {len(real):,}"
    else:
        verdict = f"wrong: {sum(a != b for a, b in zip(predicted, real, strict=True)):,} of {len(real):,}"
    return difference(predicted, real), hidden, verdict


def _is_prose(pair: Comparison) -> bool:
    texts = (pair.context, pair.real, *pair.predicted.values())
    return any(len(line) > _BOARD for text in texts for line in text[:_LONGEST].split("\n"))


def _on_page(section: Section, styles: Styles) -> tuple[Section, list[tuple[Figure, Any]], set[str]]:
    """Return a section, its figures, and the arms that its key explains."""
    return section, _drawn(section.figures, styles), {arm for figure in section.figures for arm in figure.arms}


def _drawn(figures: Sequence[Figure], styles: Styles) -> list[tuple[Figure, Any]]:
    return [(figure, page.markup(figure.draw(styles))) for figure in figures]


def _styles(report: Report) -> dict[str, int]:
    """Number each arm's colour. What is in no curve, such as the start, gets 0."""
    inner = [figure for section in (*report.sections, *report.appendix) for figure in section.figures]
    figures = sorted((*report.picture, *report.curves, *inner), key=lambda figure: isinstance(figure, Intervals))
    arms = list(dict.fromkeys([*report.details, *(arm for figure in figures for arm in figure.arms)]))
    others = [one.arm for figure in report.picture if isinstance(figure, Changes) for one in figure.changes]
    return {arm: 0 for arm in others if arm not in arms} | {arm: 1 + index % COLOURS for index, arm in enumerate(arms)}
