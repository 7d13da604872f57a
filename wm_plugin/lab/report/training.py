"""Curves of training runs: the order of metrics, and their units."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from wm_plugin.lab.report.arms import Arm
from wm_plugin.lab.report.chart import Curve

_KNOWN = yaml.safe_load(Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8"))
REST = "All other metrics"
_MOST = 12  # figures of a group
_MOST_OF_REST = 60


@dataclass(frozen=True)
class Group:
    """Curves under a heading. `left_out` has the metrics without room."""

    title: str
    curves: Sequence[Curve]
    left_out: Sequence[str] = ()


def groups(arms: Sequence[Arm], chosen: Sequence[str] = ()) -> list[Group]:
    """Return the curves of all the arms' metrics: what matters first, then tools and budgets, the rest last.

    Args:
        chosen: patterns of the only metrics to show.
    """
    metrics = _metrics(arms)
    if chosen:
        return [_group("Training", _matching(metrics, chosen), arms, _MOST_OF_REST)]
    made, used = [], set()
    for title, patterns in (
        ("Training", [*_KNOWN["outcomes"], *_KNOWN["world"], *_KNOWN["others"]]),
        ("Tools", _KNOWN["tools"]),
        ("Budgets: turns, tokens, time", _KNOWN["budgets"]),
    ):
        matching = [metric for metric in _matching(metrics, patterns) if metric not in used and _moves(metric, arms)]
        used.update(matching)
        made.append(_group(title, matching, arms, _MOST))
    rest = [*(name for group in made for name in group.left_out), *(metric for metric in metrics if metric not in used)]
    rest = [metric for metric in rest if _moves(metric, arms)]
    made.append(_group(REST, rest, arms, _MOST_OF_REST))
    return [group for group in made if group.curves]


def outcome(arms: Sequence[Arm]) -> str | None:
    """Return the metric that the runs are about: the first of the known outcomes that any of them has, else their loss."""
    return next(iter(_matching(_metrics(arms), [*_KNOWN["outcomes"], "eval/loss", "loss"])), None)


def columns(arms: Sequence[Arm], most: int = 5) -> list[str]:
    """Return the metrics of a table at a glance."""
    metrics = _metrics(arms)
    outcomes, world, others = (_matching(metrics, _KNOWN[name]) for name in ("outcomes", "world", "others"))
    return list(dict.fromkeys([*outcomes[:2], *world[:1], *others]))[:most]


def unit_of(metric: str) -> str:
    """Return a metric's unit, such as "nats a token"; "as logged" for an unknown metric."""
    name = metric.lower()
    units: dict[str, list[str]] = _KNOWN["units"]
    return next((unit for unit, words in units.items() if any(word in name for word in words)), "as logged")


def _group(title: str, metrics: Sequence[str], arms: Sequence[Arm], most: int) -> Group:
    curves = [_curve(metric, arms) for metric in metrics[:most]]
    return Group(title, curves, metrics[most:])


def _curve(metric: str, arms: Sequence[Arm]) -> Curve:
    series = [one for arm in arms if (one := arm.series(metric))]
    unit = unit_of(metric)
    share = unit == "share" and all(0 <= value <= 1 for one in series for value in one.y)
    if share:  # Student's t knows no bounds
        series = [replace(one, band=[(max(low, 0.0), min(high, 1.0)) for low, high in one.band]) for one in series]
    return Curve(metric, series, "as logged" if unit == "share" and not share else unit, "training step", share)


def _metrics(arms: Sequence[Arm]) -> list[str]:
    return sorted({metric for arm in arms for run in arm.runs for metric in run.values})


def _matching(metrics: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the metrics that match, in the order of the patterns."""
    known = list(metrics)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        chosen.update(dict.fromkeys(metric for metric in known if fnmatchcase(metric, pattern)))
    return list(chosen)


def _moves(metric: str, arms: Sequence[Arm]) -> bool:
    """Return whether a metric has more than one point in any run: the others are in the tables."""
    return any(len(run.values.get(metric, ())) > 1 for arm in arms for run in arm.runs)
