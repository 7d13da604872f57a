"""A report of any runs, evaluations and rollouts: what is in `Sources` as the contents of a `Report`."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.evaluation.report import cards, measured, played, training
from wm_plugin.evaluation.report.arms import Arm, arm_of, arms, without_seed
from wm_plugin.evaluation.report.chart import COLOURS, value_label
from wm_plugin.evaluation.report.document import Report, Sample, Section, Table
from wm_plugin.evaluation.report.sources import Measured, Rollouts, Sources, matches, names
from wm_plugin.trajectories.summary import Summary


@dataclass(frozen=True)
class Overview:
    """Everything that a report shows, named by arm."""

    arms: Sequence[Arm]
    evaluations: Sequence[Measured]
    rollouts: Sequence[tuple[str, Summary]]
    notes: Sequence[str] = field(default_factory=list)


def overview(sources: Sources, patterns: Mapping[str, str]) -> Overview:
    """Name everything by arm, and read the rollouts.

    Raises:
        UserError: a pattern matches nothing, or a file of rollouts is none.
    """
    files = [run for run in sources.runs if not run.titled]
    for run, name in zip(files, names([run.place.removesuffix(".jsonl") for run in files], without_seed), strict=True):
        run.name = name
    evaluations = _labelled(sources.evaluations, sources, patterns)
    rollouts = _named(sources.rollouts, sources, patterns)
    places = [
        *((run.name, run.place) for run in sources.runs),
        *((one.name, one.place) for one in sources.evaluations),
        *((one.name, one.place) for one in sources.rollouts),
    ]
    for name, pattern in patterns.items():
        if not any(matches(pattern, *place) for place in places):
            raise UserError(f"--arm {name}={pattern}: no run, evaluation or file of rollouts matches")
    read, notes = played.read(rollouts)
    table = arms(sources.runs, patterns)
    notes = [*sources.notes, *notes]
    for arm in table:
        notes += [f"{arm.name}, {run.name}: {note}" for run in arm.runs for note in run.notes]
    return Overview(table, evaluations, read, notes)


def report(
    view: Overview,
    *,
    title: str = "",
    metrics: Sequence[str] = (),
    samples: Sequence[Sample] = (),
    masked: bool = False,
) -> Report:
    """The contents of the page.

    Args:
        title: the heading.
        metrics: patterns of the training metrics to show; none: all, the most important first.
        samples: rollouts as tokens.
        masked: whether they say which of their tokens count.
    """
    groups = training.groups(view.arms, metrics)
    steps = list(dict.fromkeys(one.evaluation.name for one in view.evaluations))
    sections = [_training(group, view.arms) for group in groups if group.title != "All other metrics"]
    predictions, choosing = [], []
    for step in steps:
        same = [one for one in view.evaluations if one.evaluation.name == step]
        sections += measured.sections(step, measured.pooled(same))
        shown, sentence = cards.comparisons(same)
        predictions += shown
        choosing += [sentence] if sentence else []
    sections += played.sections(view.rollouts)
    labels = dict.fromkeys([*(one.arm for one in view.evaluations), *(name for name, _ in view.rollouts)])
    details = {arm.name: arm.detail for arm in view.arms}
    rest = [_training(group, view.arms, folded=True) for group in groups if group.title == "All other metrics"]
    return Report(
        title or "Report",
        headline=_headline(view),
        subtitle=_counts(view),
        sections=[*_glance(view.arms), *sections],
        comparisons=predictions,
        comparing=" ".join(dict.fromkeys(choosing)),
        samples=samples,
        masked=masked,
        appendix=[*rest, *_runs(view)],
        notes=_notes(view, groups),
        details={**details, **{name: "" for name in labels if name not in details}},
    )


def _headline(view: Overview) -> str:
    """Where the runs end, in one sentence."""
    first = training.outcome(view.arms)
    parts: dict[str, list[str]] = {}
    for arm in view.arms[:COLOURS]:
        metric = first if first and arm.last(first) else training.outcome([arm])  # hosts have names of their own
        if metric and (last := arm.last(metric)):
            value, interval, count = last
            certain = f" ({_number(interval[0])} to {_number(interval[1])}, {count} seeds)" if interval else ""
            parts.setdefault(metric, []).append(f"{_number(value)} for {arm.name}{certain}")
    sentence = "; ".join(f"{metric} ends at {', '.join(ends)}" for metric, ends in parts.items())
    return f"{sentence}." if sentence else ""


def _counts(view: Overview) -> str:
    runs = sum(arm.seeds for arm in view.arms)
    parts = [
        f"{runs} training run{'s' * (runs != 1)} in {len(view.arms)} arm{'s' * (len(view.arms) != 1)}" if runs else "",
        f"{len(view.evaluations)} evaluation{'s' * (len(view.evaluations) != 1)}" if view.evaluations else "",
        f"{len(view.rollouts)} file{'s' * (len(view.rollouts) != 1)} of rollouts" if view.rollouts else "",
    ]
    return f"{', '.join(filter(None, parts))}."


def _glance(table: Sequence[Arm]) -> list[Section]:
    """The last values of the most important metrics, by arm."""
    columns = training.columns(table)
    if not columns:
        return []
    rows = []
    for arm in table:
        steps = max(run.last_step for run in arm.runs)
        row = [arm.name, f"{arm.seeds}", f"{steps:,}"]
        for metric in columns:
            last = arm.last(metric)
            row.append(_with_interval(last[0], last[1]) if last else "–")
        rows.append(row)
    text = "Each run's last value. Of several runs: their mean, and under it its 95% interval (of two, their range)."
    return [Section("At a glance", text, tables=[Table(("arm", "runs", "last step", *columns), rows)])]


def _training(group: training.Group, table: Sequence[Arm], *, folded: bool = False) -> Section:
    text = ""
    if any(arm.seeds > 1 for arm in table) and not folded:
        text = (
            "A line is the mean of an arm's runs, which are faint; the band is the 95% interval of that mean (of two runs, "
            "their range)."
        )
    title = f"{group.title} ({len(group.curves)})" if folded else group.title
    return Section(title, text, figures=group.curves, folded=folded, detailed=True)


def _runs(view: Overview) -> list[Section]:
    """Which files each arm was read from."""
    rows = [
        [arm.name, run.name, f"{run.last_step:,}", f"{len(run.values)}", "\n".join(run.sources[:20])]
        for arm in view.arms
        for run in arm.runs
    ]
    tables = [Table(("arm", "run", "last step", "metrics", "read from"), rows, (4,))] if rows else []
    if view.evaluations:
        rows = [[one.name, one.evaluation.name, one.evaluation.data, one.place] for one in view.evaluations]
        tables.append(Table(("of", "evaluation", "data", "read from"), rows, (2, 3)))
    return [Section("Where it comes from", tables=tables, folded=True)] if tables else []


def _notes(view: Overview, groups: Sequence[training.Group]) -> list[str]:
    notes = list(view.notes)
    left = groups[-1].left_out if groups and groups[-1].title == "All other metrics" else []
    if left:
        notes.append(
            f"{len(left)} more metrics have no figure here; choose them by --metric, or take the CSV or the JSON."
        )
    if len(view.arms) > COLOURS:
        notes.append(f"There are more than {COLOURS} arms, so that colours repeat.")
    remarks: dict[str, list[str]] = {}
    for one in view.evaluations:
        for note in one.evaluation.notes:
            remarks.setdefault(note, []).append(f"{one.evaluation.name} of {one.name}")
    return [*notes, *(f"{', '.join(of)}: {note}" for note, of in remarks.items())]


def _labelled(evaluations: Sequence[Measured], sources: Sources, patterns: Mapping[str, str]) -> list[Measured]:
    """Evaluations named by arm: that of a pattern, or of the run whose model was evaluated, or by the model."""
    subjects, folders = (
        names([one.evaluation.subject for one in evaluations]),
        names([one.place for one in evaluations]),
    )
    of = [
        _arm_of(one.place, sources, patterns) or _arm_of(one.evaluation.subject, sources, patterns) or ""
        for one in evaluations
    ]
    count = Counter(
        (one.evaluation.name, arm or name) for one, arm, name in zip(evaluations, of, subjects, strict=True)
    )
    made = []
    for one, arm, name, folder in zip(evaluations, of, subjects, folders, strict=True):
        label = arm or name
        alone = count[one.evaluation.name, label] == 1
        label = label if alone else f"{label} ({folder})"
        made.append(Measured(label, one.place, one.evaluation, arm or label))
    return made


def _named(rollouts: Sequence[Rollouts], sources: Sources, patterns: Mapping[str, str]) -> list[Rollouts]:
    short = [name.removesuffix(".jsonl") for name in names([one.place for one in rollouts])]
    made: dict[str, Rollouts] = {}
    for one, name in zip(rollouts, short, strict=True):
        label = _arm_of(one.place, sources, patterns) or name
        label = next(choice for choice in (label, name, one.place) if choice not in made)
        made[label] = Rollouts(label, one.place)
    return list(made.values())


def _arm_of(place: str, sources: Sources, patterns: Mapping[str, str]) -> str | None:
    """The arm that a path belongs to: by a pattern, or as a part of a run's folder."""
    if arm := arm_of(place, place, patterns):
        return arm
    for run in sources.runs:
        if place == run.place or place.startswith(f"{run.place.rstrip('/')}/"):
            return arm_of(run.name, run.place, patterns) or without_seed(run.name) or run.name
    return None


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return _number(value) + (f"\n{_number(interval[0])} to {_number(interval[1])}" if interval else "")


def _number(value: float) -> str:
    return value_label(value, False)


def figures_of(rollouts: Sequence[tuple[str, Summary]]) -> list[tuple[str, Any]]:
    """The figures of rollouts as JSON values; numbers that are not finite are None."""
    return [(name, _finite(summary.as_dict())) for name, summary in rollouts]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
