"""Ratios of sums by task, with intervals over tasks; and their differences between two sets of episodes on the same tasks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from wm_plugin.lab.evaluation.compare import Ratio, compare
from wm_plugin.lab.evaluation.measures import Measure, interval


class Key(NamedTuple):
    """A measure's name, unit and group, as in `Measure`."""

    name: str
    unit: str = "share"
    by: str = ""
    group: str = ""


@dataclass
class Sums:
    """Sums of each measure and task: total, count, and how many rows failed."""

    of: dict[Key, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, key: Key, task: str, total: float = 0.0, count: float = 1.0, failed: float = 0.0) -> None:
        """Add to a measure's sums of a task; a failed row has a count of 0."""
        sums = self.of.setdefault(key, {}).setdefault(task, [0.0, 0.0, 0.0])
        for place, value in enumerate((total, count, failed)):
            sums[place] += value

    def measures(self, *, by: str = "", group: str = "", seed: int = 0) -> list[Measure]:
        """The measures in the order in which they came; in the table, a failed row counts as 0 where failed ones count.

        Args:
            by, group: of measures that have no group of their own; the others are left out then.
        """
        chosen = (
            {key._replace(by=by, group=group): tasks for key, tasks in self.of.items() if not key.by} if by else self.of
        )
        return [_measure(key, tasks, seed) for key, tasks in chosen.items()]


def differences(after: Sums, before: Sums, *, seed: int = 0) -> list[Measure]:
    """The difference of each measure that both have, over the tasks that both have, with an interval of 99%."""
    measures = []
    for key, tasks in after.of.items():
        others = before.of.get(key, {})
        common = [task for task in tasks if task in others and tasks[task][1] + others[task][1]]
        if len(common) < 2:
            continue
        of, against = ([sums[task] for task in common] for sums in (tasks, others))
        ratios = [Ratio(*torch.tensor(sums, dtype=torch.float64)[:, :2].T) for sums in (of, against)]
        if not all(float(ratio.count.sum()) for ratio in ratios):
            continue
        paired = compare(ratios[0], ratios[1], common, seed)
        # NaN where a draw has no count
        low, high = (None if math.isnan(limit) else limit for limit in (paired.low, paired.high))
        note = f"after - before on the same {len(common):,} tasks, 99% interval: {paired.verdict}"
        name = f"{key.name}_difference"
        value, count = paired.difference, len(common)
        measures.append(Measure(name, value, key.unit, count, key.by, key.group, low, high, note=note))
    return measures


def _measure(key: Key, tasks: Mapping[str, list[float]], seed: int) -> Measure:
    totals, counts, failures = (list(column) for column in zip(*tasks.values(), strict=True))
    total, count, failed = sum(totals), sum(counts), sum(failures)
    low, high = interval(totals, counts, list(tasks), seed=seed)
    return Measure(
        key.name,
        total / count if count else None,
        key.unit,
        round(count),
        key.by,
        key.group,
        low,
        high,
        round(failed),
        total / (count + failed) if count + failed else None,
    )
