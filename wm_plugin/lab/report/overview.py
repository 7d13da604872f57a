"""Turns any runs, evaluations and rollouts (`Sources`) into the contents of a `Report`."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.lab.report import cards, compared, measured, played, training
from wm_plugin.lab.report.arms import Arm, arm_of, arms, without_seed
from wm_plugin.lab.report.chart import COLOURS, value_label
from wm_plugin.lab.report.compared import Compared
from wm_plugin.lab.report.document import Report, Sample, Section, Table
from wm_plugin.lab.report.played import Played
from wm_plugin.lab.report.sources import Measured, Rollouts, Sources, below, matches, names
from wm_plugin.untrusted import without_nan


@dataclass(frozen=True)
class Overview:
    """Everything that a report shows, named by arm."""

    arms: Sequence[Arm]
    evaluations: Sequence[Measured]
    files: Sequence[Rollouts]  # the files of rollouts
    rollouts: Sequence[Played]  # what is in the files, by arm and split
    outcomes: Sequence[Measured]  # what each file measures
    compared: Compared  # the arms of all evaluations and outcomes
    notes: Sequence[str] = field(default_factory=list)

    @property
    def measured(self) -> list[Measured]:
        return [*self.evaluations, *self.outcomes]


def overview(sources: Sources, patterns: Mapping[str, str], against: str = "") -> Overview:
    """Name everything by arm, read the rollouts, and compare.

    Args:
        against: the arm that others are compared with; "" is the first one.

    Raises:
        UserError: a pattern matches nothing, a file of rollouts has no known format, or no evaluation belongs to `against`.
    """
    for run in sources.runs:
        run.names = training.shared(run.values)
    files = [run for run in sources.runs if not run.titled]
    for run, name in zip(files, names([_without_suffix(run.place) for run in files], without_seed), strict=True):
        run.name = name
    evaluations = _labelled(sources.evaluations, sources, patterns)
    rollouts = _named(sources.rollouts, sources, patterns)
    everything: list[Any] = [*sources.runs, *sources.evaluations, *sources.rollouts]
    for name, pattern in patterns.items():
        if not any(matches(pattern, one.name, one.place) for one in everything):
            raise UserError(f"--arm {name}={pattern}: no run, evaluation or file of rollouts matches")
    read, outcomes, notes = played.read(rollouts)
    table = arms(sources.runs, patterns)
    # what was trained is the baseline, in the order that the user gave; not a model that was only evaluated
    order = [*(arm.name for arm in table), *patterns]
    found = compared.compared([*evaluations, *outcomes], order, against)
    notes = [*sources.notes, *notes]
    for arm in table:
        notes += [f"{arm.name}, {run.name}: {note}" for run in arm.runs for note in run.notes]
        if short := arm.short:
            ends = ", ".join(f"{run.name} at {run.last_step:,}" for run in short)
            notes.append(
                f"{arm.name}: its last values are of different steps; it ends at step {arm.last_step:,}, but {ends}"
            )
    return Overview(table, evaluations, rollouts, read, outcomes, found, notes)


def report(
    view: Overview,
    *,
    title: str = "",
    metrics: Sequence[str] = (),
    samples: Sequence[Sample] = (),
    masked: bool = False,
) -> Report:
    """Make the contents of the page.

    Args:
        metrics: patterns of the training metrics to show; by default all, the most important first.
        samples: rollouts as tokens.
        masked: whether they say which of their tokens count.
    """
    groups = training.groups(view.arms, metrics)
    steps = list(dict.fromkeys(one.evaluation.name for one in view.measured))
    sections = [_training(group, view.arms) for group in groups if not group.folded]
    predictions, choosing = [], []
    for step in steps:
        same = [one for one in view.measured if one.evaluation.name == step]
        sections += measured.sections(step, measured.pooled(same))
        shown, sentence = cards.comparisons(same)
        predictions += shown
        choosing += [sentence] if sentence else []
    sections += played.sections(view.rollouts)
    details = {arm.name: arm.detail for arm in view.arms}
    rest = [_training(group, view.arms) for group in groups if group.folded]
    return Report(
        title or "Report",
        headline=_headline(view),
        subtitle=_counts(view),
        sections=[*_glance(view.arms), *compared.sections(view.compared), *sections],
        comparisons=predictions,
        comparing=" ".join(dict.fromkeys(choosing)),
        samples=samples,
        masked=masked,
        appendix=[*rest, *_runs(view)],
        notes=_notes(view, groups),
        details={**details, **{one.arm: "" for one in view.measured if one.arm not in details}},
    )


def _headline(view: Overview) -> str:
    """Say in one sentence where the runs end."""
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
    runs, arms, evaluations, files = (
        sum(arm.seeds for arm in view.arms), len(view.arms), len(view.evaluations), len(view.files),
    )  # fmt: skip
    parts = [
        f"{runs} training run{'s' * (runs != 1)} in {arms} arm{'s' * (arms != 1)}" if runs else "",
        f"{evaluations} evaluation{'s' * (evaluations != 1)}" if evaluations else "",
        f"{files} file{'s' * (files != 1)} of rollouts" if files else "",
    ]
    return f"{', '.join(filter(None, parts))}."


def _glance(table: Sequence[Arm]) -> list[Section]:
    """Return the last values of the most important metrics, by arm."""
    columns = training.columns(table)
    if not columns:
        return []
    rows = []
    for arm in table:
        row = [arm.name, f"{arm.seeds}", f"{arm.last_step:,}"]
        for metric in columns:
            value, interval, _ = arm.last(metric) or (None, None, 0)
            limits = f"\n{_number(interval[0])} to {_number(interval[1])}" if interval else ""
            row.append("–" if value is None else _number(value) + limits)
        rows.append(row)
    text = "Each run's last value. Of several runs: their mean, and under it its 95% interval (of two, their range)."
    if any(arm.short for arm in table):
        text += " A note names the runs that ended before the last step of their arm."
    return [Section("At a glance", text, tables=[Table(("arm", "runs", "last step", *columns), rows)])]


def _training(group: training.Group, table: Sequence[Arm]) -> Section:
    text, folded = "", group.folded
    if any(arm.seeds > 1 for arm in table) and not folded:
        text = (
            "A line is the mean of an arm's runs, which are faint; the band is the 95% interval of that mean (of two runs, "
            "their range)."
        )
    title = f"{group.title} ({len(group.curves)})" if folded else group.title
    return Section(title, text, figures=group.curves, folded=folded, detailed=True)


def _runs(view: Overview) -> list[Section]:
    """Return which files each arm was read from."""
    rows = [
        [arm.name, run.name, f"{run.last_step:,}", f"{len(run.values)}", "\n".join(run.sources[:20])]
        for arm in view.arms
        for run in arm.runs
    ]
    tables = [Table(("arm", "run", "last step", "metrics", "read from"), rows, (4,))] if rows else []
    if view.measured:
        rows = [[one.name, one.evaluation.name, one.evaluation.data, one.place] for one in view.measured]
        tables.append(Table(("of", "evaluation", "data", "read from"), rows, (2, 3)))
    return [Section("Where it comes from", tables=tables, folded=True)] if tables else []


def _notes(view: Overview, groups: Sequence[training.Group]) -> list[str]:
    notes = list(view.notes)
    if left := [metric for group in groups if group.title == training.REST for metric in group.left_out]:
        notes.append(
            f"{len(left)} more metrics have no figure here; choose them by --metric, or take the CSV or the JSON."
        )
    renamed: dict[tuple[str, str], list[str]] = {}
    for arm in view.arms:
        for name, own in (pair for run in arm.runs for pair in run.names.items()):
            renamed.setdefault((name, own), []).append(arm.name)
    if renamed:
        by = "; ".join(f"{name} is {own} of {', '.join(dict.fromkeys(of))}" for (name, own), of in renamed.items())
        notes.append(f"Hosts have names of their own: {by}. The CSV and the JSON have the hosts' names.")
    if len(view.arms) > COLOURS:
        notes.append(f"There are more than {COLOURS} arms, so that colours repeat.")
    remarks: dict[str, list[str]] = {}
    for one in view.evaluations:
        for note in one.evaluation.notes:
            remarks.setdefault(note, []).append(f"{one.evaluation.name} of {one.name}")
    return [*notes, *(f"{', '.join(of)}: {note}" for note, of in remarks.items())]


def _labelled(evaluations: Sequence[Measured], sources: Sources, patterns: Mapping[str, str]) -> list[Measured]:
    """Name evaluations by arm: a pattern's, or that of the run whose model was evaluated, or the model without its seed."""
    subjects = names([one.evaluation.subject for one in evaluations])
    folders = names([one.place for one in evaluations])
    of = []
    for one, name in zip(evaluations, subjects, strict=True):
        arm = _arm_of(one.place, sources, patterns)[0] or _arm_of(one.evaluation.subject, sources, patterns)[0]
        seedless = without_seed(name)
        of.append((arm or (seedless if seedless != name else ""), name))
    count = Counter((one.evaluation.name, arm or name) for one, (arm, name) in zip(evaluations, of, strict=True))
    made = []
    for one, (arm, name), folder in zip(evaluations, of, folders, strict=True):
        label = arm or name
        if count[one.evaluation.name, label] > 1:
            label = f"{label} ({folder})"
        made.append(Measured(label, one.place, one.evaluation, arm or label))
    return made


def _named(rollouts: Sequence[Rollouts], sources: Sources, patterns: Mapping[str, str]) -> list[Rollouts]:
    """Name files of rollouts by arm and split.

    The split is what a path has below its arm's folder, without seeds: `seen` of played/echo_s0/seen.jsonl. A name that files in
    several folders have is one, too.
    """
    places = [one.place for one in rollouts]
    files = names([_without_suffix(place) for place in places], without_seed)
    folders = names([os.path.dirname(place) for place in places], without_seed)
    stems = [without_seed(_without_suffix(os.path.basename(place))) for place in places]
    several = Counter(stem for stem, _ in {(s, os.path.dirname(place)) for s, place in zip(stems, places, strict=True)})
    made = []
    for place, file, folder, stem in zip(places, files, folders, stems, strict=True):
        arm, rest = _arm_of(place, sources, patterns)
        split = without_seed(_without_suffix(rest)) or (stem if several[stem] > 1 else "")
        name = folder if split else file
        made.append(Rollouts(file, place, arm or without_seed(name) or name, split))
    return made


def _without_suffix(place: str) -> str:
    return place.removesuffix(".jsonl")


def _arm_of(place: str, sources: Sources, patterns: Mapping[str, str]) -> tuple[str, str]:
    """Return a path's arm, by a pattern or as a part of a run's folder, and what it has below the arm's folder."""
    if arm := arm_of(place, place, patterns):
        return arm, below(patterns[arm], place)
    for run in sources.runs:
        folder = run.place.rstrip("/")
        if place == run.place or place.startswith(f"{folder}/"):
            arm = arm_of(run.name, run.place, patterns) or without_seed(run.name) or run.name
            return arm, place[len(folder) :].strip("/")
    return "", ""


def _number(value: float) -> str:
    return value_label(value, False)


def figures_of(rollouts: Sequence[Played]) -> list[tuple[str, Any]]:
    """Return the figures of rollouts as JSON values, by arm and split; numbers that are not finite are None."""
    return [
        (
            one.name,
            {
                "evaluation": played.evaluation_name(one.split),
                "files": one.places,
                **without_nan(one.summary.as_dict()),
            },
        )
        for one in rollouts
    ]
