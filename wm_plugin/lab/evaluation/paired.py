"""Ratios of sums by task with intervals over tasks, and their differences between two sets of episodes on the same tasks."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from wm_plugin.lab.evaluation.compare import Ratio, compare
from wm_plugin.lab.evaluation.measures import Measure, ratio


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
        """Add to a task's sums of a measure; a failed row has a count of 0."""
        sums = self.of.setdefault(key, {}).setdefault(task, [0.0, 0.0, 0.0])
        for place, value in enumerate((total, count, failed)):
            sums[place] += value

    def measures(self, *, by: str = "", group: str = "", seed: int = 0) -> list[Measure]:
        """Return the measures in the order in which they came.

        Args:
            by, group: the group for measures without one of their own; the others are then left out.
        """
        chosen = self.of
        if by:
            chosen = {key._replace(by=by, group=group): tasks for key, tasks in self.of.items() if not key.by}
        measures = []
        for key, tasks in chosen.items():
            totals, counts, failed = zip(*tasks.values(), strict=True)
            of = {"by": key.by, "group": key.group, "failed": sum(failed), "seed": seed}
            measures.append(ratio(key.name, key.unit, totals, counts, list(tasks), **of))
        return measures


def differences(after: Sums, before: Sums, *, seed: int = 0) -> list[Measure]:
    """Return each shared measure's difference over the shared tasks, with an interval of 99%."""
    measures = []
    for key, tasks in after.of.items():
        others = before.of.get(key, {})
        common = [task for task in tasks if task in others and tasks[task][1] + others[task][1]]
        if len(common) < 2:
            continue
        sums = ([of[task] for task in common] for of in (tasks, others))
        ratios = [Ratio(*torch.tensor(one, dtype=torch.float64)[:, :2].T) for one in sums]
        if not all(float(one.count.sum()) for one in ratios):
            continue
        paired = compare(ratios[0], ratios[1], common, seed)
        # NaN where a draw has no count
        low, high = (None if math.isnan(limit) else limit for limit in (paired.low, paired.high))
        note = f"after - before on the same {len(common):,} tasks, 99% interval: {paired.verdict}"
        of = (f"{key.name}_difference", paired.difference, key.unit, len(common), key.by, key.group)
        measures.append(Measure(*of, low, high, note=note))
    return measures
