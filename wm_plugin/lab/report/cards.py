"""Chooses the predictions that a report shows beside the real observations: the worst ones, and typical ones."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import read_rows
from wm_plugin.lab.report.document import Comparison
from wm_plugin.lab.report.sources import Measured
from wm_plugin.untrusted import number

WORST, TYPICAL = 4, 3  # how many are shown
_ROWS = 200_000  # of an evaluation that are read
_LOWER_IS_BETTER = ("nll", "loss", "perplexity", "distance")
_LONGEST = 4000  # characters of a text that are kept
_NAMED, _COMPARED = 100, 1000  # rows by which the score is chosen

Row = Mapping[str, Any]


def comparisons(evaluations: Sequence[Measured]) -> tuple[list[Comparison], str]:
    """Return cards of one step's evaluations, and a sentence that says how they were chosen.

    An action counts by its worst prediction; what the other evaluations predict after it stands beside that.
    """
    score = _main_score(evaluations)
    sign = -1.0 if any(word in score.lower() for word in _LOWER_IS_BETTER) else 1.0
    worst_of: dict[int, tuple[float, int]] = {}  # by action: the value, and whose it is
    count = 0
    damaged: list[str] = []
    for whose, one in enumerate(evaluations):
        for row in _predictions(one, damaged):
            value = number(_scores(row).get(score))
            ranked = (float("-inf") if value is None else sign * value, whose)
            key = _key(row)
            worst_of[key] = min(worst_of.get(key, ranked), ranked)
            count += 1
    end = "".join(f" {place}: what follows is not read." for place in damaged)
    if not worst_of:
        return [], end.strip()
    worst = nsmallest(WORST, worst_of, key=lambda key: worst_of[key])
    middle = sorted(worst_of.values())[len(worst_of) // 2][0]
    typical = nsmallest(WORST + TYPICAL, worst_of, key=lambda key: abs(worst_of[key][0] - middle))
    order = [*worst, *[key for key in typical if key not in worst][:TYPICAL]]
    rows: dict[int, Row] = {}
    predicted: dict[int, dict[str, str]] = {key: {} for key in order}
    for one in evaluations:
        for row in _predictions(one):
            if (key := _key(row)) in predicted:
                rows.setdefault(key, row)
                predicted[key].setdefault(one.name, _text(row, "predicted"))
    cards = []
    for key in order:
        value, whose = worst_of[key]
        of = f" ({evaluations[whose].name})" if len(evaluations) > 1 else ""
        shown = f": {score} {sign * value:.3g}{of}" if score and value > float("-inf") else ""
        kind = "worst" if key in worst else "typical"
        row, title = rows[key], f"{evaluations[whose].evaluation.name}, {kind}{shown}"
        cards.append(Comparison(_text(row, "context"), _text(row, "real"), predicted[key], title, _text(row, "action")))
    by = f"by {score}, " if score else ""
    return cards, f"Chosen {by}of {count:,} predictions: the worst first, then typical ones, around the median.{end}"


def _main_score(evaluations: Sequence[Measured]) -> str:
    """Return the score that tells most rows apart, of the names that the first rows have."""
    scores = [_scores(row) for one in evaluations for row in islice(_predictions(one), _COMPARED)]
    names = dict.fromkeys(name for row in scores[:_NAMED] for name, value in row.items() if number(value) is not None)
    return max(names, key=lambda name: len({number(row.get(name)) for row in scores}), default="")


def _predictions(one: Measured, damaged: list[str] | None = None) -> Iterator[Row]:
    """Yield the rows with a prediction, up to a damaged one, whose place is added to `damaged`."""
    try:
        for row in islice(read_rows(one.place), _ROWS):
            if isinstance(row.get("real"), str) and isinstance(row.get("predicted"), str):
                yield row
    except UserError as error:
        if damaged is not None:
            damaged.append(str(error))


def _key(row: Row) -> int:
    return hash((_text(row, "context"), _text(row, "action"), _text(row, "real")))


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return value[:_LONGEST] if isinstance(value, str) else ""


def _scores(row: Row) -> Mapping[str, Any]:
    value = row.get("scores")
    return value if isinstance(value, dict) else {}
