"""What a dataset holds: how long its texts are, which tools answered and how often wrongly, and how much of the world it shows.

One pass in little memory: of a text, its length is kept. A few transitions are drawn at random to look at.
"""

import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.objectives.information import KEEP, category
from wm_plugin.trajectories.schema import Action, Observation, Trajectory, Transition
from wm_plugin.trajectories.turn_texts import action_text

Measure = Callable[[str], int]  # the length of a text, in characters or tokens


@dataclass
class Tool:
    """What one tool, or one other kind of observation, said."""

    observations: int = 0
    errors: int = 0  # flagged by the source
    empty: int = 0
    lengths: "array[int]" = field(default_factory=lambda: array("Q"))


@dataclass(frozen=True)
class Shown:
    """A transition to look at."""

    where: str
    before: str  # the observation before, or what the agent knew first
    action: str
    observation: str
    category: str
    error: bool


class Summary:
    """Figures of trajectories and transitions, which `add` takes.

    Args:
        measure: of a text's length; None: characters.
        samples: transitions that are kept to look at.
        seed: of the draw.
    """

    def __init__(self, measure: Measure | None = None, *, samples: int = 8, seed: int = 0) -> None:
        self.unit = "characters" if measure is None else "tokens"
        self.trajectories = 0
        self.transitions = 0
        self.turns = array("Q")  # of the agent, a trajectory
        self.outcomes: Counter[bool | None] = Counter()
        self.rewards = array("d")
        self.tasks: set[str] = set()
        self.kinds: Counter[str] = Counter()
        self.tools: defaultdict[str, Tool] = defaultdict(Tool)
        self.categories: Counter[str] = Counter()
        self.actions = array("Q")
        self.samples: list[Shown] = []
        self._measure = measure or len
        self._wanted = samples
        self._luck = random.Random(seed)

    def add(self, record: Trajectory | Transition) -> None:
        """Count a trajectory with its transitions, or a transition by itself."""
        self.tasks.add(record.task_id)
        if isinstance(record, Transition):
            before = record.history[-1].observations[-1:] if record.history else ()
            self._observe(
                f"{record.trajectory}, turn {record.turn}",
                before[0].text if before else record.context.initial_state,
                record.action,
                record.observation,
            )
            return
        self.trajectories += 1
        self.turns.append(sum(turn.actor == "agent" for turn in record.turns))
        self.outcomes[record.success] += 1
        if record.reward is not None:
            self.rewards.append(record.reward)
        where = f"{record.source.file}, row {record.source.row}" if record.source else record.task_id
        for number, _, observation in record.observed():
            before = record.turns[number - 1].observations[-1:] if number else ()
            self._observe(
                f"{where}, turn {number}",
                before[0].text if before else record.context.initial_state,
                record.turns[number].action,
                observation,
            )

    def _observe(self, where: str, before: str, action: Action, observation: Observation) -> None:
        acted = action_text(action, observation.call)
        found = category(acted, observation.text)
        self.transitions += 1
        self.kinds[observation.kind] += 1
        self.categories[found] += 1
        self.actions.append(self._measure(acted))
        tool = self.tools[observation.tool or f"({observation.kind})"]
        tool.observations += 1
        tool.errors += observation.error
        tool.empty += not observation.text.strip()
        tool.lengths.append(self._measure(observation.text))
        # every transition has the same chance to be among the samples, however many come
        place = self.transitions - 1 if self.transitions <= self._wanted else self._luck.randrange(self.transitions)
        if place < self._wanted:
            shown = Shown(where, before, acted, observation.text, found, observation.error)
            self.samples[place : place + 1] = [shown]

    def as_dict(self) -> dict[str, Any]:
        """The figures. Shares are None where there is nothing to share in."""
        lengths = array("Q")
        for tool in self.tools.values():
            lengths.extend(tool.lengths)
        known = self.outcomes[True] + self.outcomes[False]
        ratios = sum(KEEP[name] * count for name, count in self.categories.items())
        return {
            "trajectories": self.trajectories,
            "transitions": self.transitions,
            "tasks": len(self.tasks),
            "observations": {kind: self.kinds[kind] for kind in ("tool", "user", "environment")},
            "success_share": _share(self.outcomes[True], known),
            "mean_reward": sum(self.rewards) / len(self.rewards) if self.rewards else None,
            "turns": spread(self.turns),
            "unit": self.unit,
            "action_length": spread(self.actions),
            "observation_length": spread(lengths),
            "error_share": _share(sum(tool.errors for tool in self.tools.values()), self.transitions),
            "empty_share": _share(sum(tool.empty for tool in self.tools.values()), self.transitions),
            "tools": {
                name: {
                    "observations": tool.observations,
                    "error_share": _share(tool.errors, tool.observations),
                    "empty_share": _share(tool.empty, tool.observations),
                    "length": spread(tool.lengths),
                }
                for name, tool in sorted(self.tools.items(), key=lambda item: (-item[1].observations, item[0]))
            },
            "categories": {name: _share(self.categories[name], self.transitions) for name in KEEP},
            "kept_by_information": _share(ratios, self.transitions),
        }


def spread(values: Iterable[int]) -> dict[str, float] | None:
    """Minimum, median, 95th percentile (nearest rank) and maximum; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    rank = -(-95 * len(ordered) // 100)  # rounded up
    return {"min": ordered[0], "median": median, "p95": ordered[rank - 1], "max": ordered[-1]}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
