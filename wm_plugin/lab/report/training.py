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
_FIRST = 8  # figures that are open, which with the tables are three screens
_MOST = 12  # figures of a folded group
_MOST_OF_REST = 60


@dataclass(frozen=True)
class Group:
    """Curves under a heading, open or folded. `left_out` has the metrics without room."""

    title: str
    curves: Sequence[Curve]
    left_out: Sequence[str] = ()
    folded: bool = True


def shared(metrics: Iterable[str]) -> dict[str, str]:
    """Return the shared names of a run's metrics, and which metric each one is: {"entropy": "actor/entropy"} on verl."""
    known = set(metrics)
    found = {}
    for name, patterns in _KNOWN["shared"].items():
        of = _matching(sorted(known), patterns) if name not in known else []
        if len(of) == 1:
            found[name] = of[0]
    return found


def groups(arms: Sequence[Arm], chosen: Sequence[str] = ()) -> list[Group]:
    """Return the curves of all the arms' metrics: what matters first, then tools and budgets, the rest last.

    Args:
        chosen: patterns of the only metrics to show.
    """
    metrics = _metrics(arms)
    if chosen:
        own = {one for arm in arms for run in arm.runs for one in run.names.values()}
        matching = _matching([*metrics, *sorted(own - set(metrics))], chosen)
        return [replace(_group("Training", matching, arms, _MOST_OF_REST), folded=False)]
    made: list[Group] = []
    used: set[str] = set()
    about = outcome(arms)  # drawn, even if it is a flat line
    for title, patterns in (
        ("Training", [*_KNOWN["outcomes"][:3], *_KNOWN["world"][:3], *_KNOWN["others"][:2], *_KNOWN["outcomes"], *_KNOWN["world"],
                      *_KNOWN["others"]]),
        ("Tools", _KNOWN["tools"]),
        ("Budgets: turns, tokens, time", _KNOWN["budgets"]),
    ):  # fmt: skip
        matching = [
            one for one in _matching(metrics, patterns) if one not in used and (one == about or _moves(one, arms))
        ]
        used.update(matching)
        group = _group(title, matching, arms, _MOST if made else _FIRST)
        made.append(replace(group, folded=bool(made)))
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
    """Return a metric's unit, such as "nats a token"; "" for one without a unit, or an unknown one."""
    name = metric.lower()
    units: dict[str, list[str]] = _KNOWN["units"]
    return next((unit for unit, words in units.items() if any(word in name for word in words)), "")


def _group(title: str, metrics: Sequence[str], arms: Sequence[Arm], most: int) -> Group:
    curves = [_curve(metric, arms) for metric in metrics[:most]]
    return Group(title, curves, metrics[most:])


def _curve(metric: str, arms: Sequence[Arm]) -> Curve:
    series = [one for arm in arms if (one := arm.series(metric))]
    unit = unit_of(metric)
    share = unit == "share" and all(0 <= value <= 1 for one in series for value in one.y)
    if share:  # Student's t knows no bounds
        series = [replace(one, band=[(max(low, 0.0), min(high, 1.0)) for low, high in one.band]) for one in series]
    return Curve(metric, series, "" if unit == "share" and not share else unit, "training step", share)


def _metrics(arms: Sequence[Arm]) -> list[str]:
    return sorted({metric for arm in arms for run in arm.runs for metric in run.metrics})


def _matching(metrics: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the metrics that match, in the order of the patterns."""
    known = list(metrics)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        chosen.update(dict.fromkeys(metric for metric in known if fnmatchcase(metric, pattern)))
    return list(chosen)


def _moves(metric: str, arms: Sequence[Arm]) -> bool:
    """Return whether a metric changes in a run, so that a figure shows more than a table."""
    return any(len(set(run.curve(metric).values())) > 1 for arm in arms for run in arm.runs)
