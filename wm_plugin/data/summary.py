"""Statistics of a dataset: lengths of texts, tools and their errors, categories of observations, and a few random transitions.

One pass in little memory: only the length of each text is kept, and beside scores of `wm data easy` the key of each transition.
"""

import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Context, Observation, Trajectory, Transition, Turn
from wm_plugin.data.transitions import holds_transitions, identity, read_transitions
from wm_plugin.data.turn_texts import action_text
from wm_plugin.errors import UserError
from wm_plugin.objectives.information import KEEP, category
from wm_plugin.untrusted import loads

Measure = Callable[[str], int]  # the length of a text, in characters or tokens
Key = tuple[str, int, int | None]  # of a transition: the trajectory, the turn, the call


@dataclass
class Tool:
    """Counts for one tool, or for one other kind of observation."""

    observations: int = 0
    errors: int = 0  # flagged by the source
    empty: int = 0
    lengths: "array[int]" = field(default_factory=lambda: array("Q"))


@dataclass(frozen=True)
class Sample:
    """A transition for people to look at."""

    where: str
    before: str  # the observation before, or the initial state
    action: str
    observation: str
    category: str
    error: bool


class Summary:
    """Statistics of the trajectories and transitions passed to `add`."""

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
        self.samples: list[Sample] = []
        self._measure = measure or len
        self._sample_size = samples
        self._rng = random.Random(seed)

    def add(self, record: Trajectory | Transition) -> None:
        """Count a trajectory with its transitions, or a single transition."""
        if isinstance(record, Transition):
            self.tasks.add(record.task_id or record.trajectory)
            where = f"{record.trajectory}, turn {record.turn}"
            self._observe(where, record.context, record.history[-1:], record.action, record.observation)
            return
        self.tasks.add(record.task_id or identity(record))
        self.trajectories += 1
        self.turns.append(sum(turn.actor == "agent" for turn in record.turns))
        self.outcomes[record.success] += 1
        if record.reward is not None:
            self.rewards.append(record.reward)
        place = f"{record.source.file}, row {record.source.row}" if record.source else record.task_id
        for number, _, observation in record.observed():
            before = record.turns[max(number - 1, 0) : number]
            where = f"{place}, turn {number}"
            self._observe(where, record.context, before, record.turns[number].action, observation)

    def _observe(
        self, where: str, context: Context, turns: Sequence[Turn], action: Action, observation: Observation
    ) -> None:
        action_as_text = action_text(action, observation.call)
        name = category(action_as_text, observation.text)
        self.transitions += 1
        self.kinds[observation.kind] += 1
        self.categories[name] += 1
        self.actions.append(self._measure(action_as_text))
        tool = self.tools[observation.tool or f"({observation.kind})"]
        tool.observations += 1
        tool.errors += observation.error
        tool.empty += not observation.text.strip()
        tool.lengths.append(self._measure(observation.text))
        # every transition has the same chance to be among the samples, however many come
        place = self.transitions - 1 if self.transitions <= self._sample_size else self._rng.randrange(self.transitions)
        if place < self._sample_size:
            seen = [one.text for turn in turns for one in turn.observations[-1:]]
            before = seen[-1] if seen else context.initial_state
            sample = Sample(where, before, action_as_text, observation.text, name, observation.error)
            self.samples[place : place + 1] = [sample]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, ready for JSON. A share is None where there is nothing to count."""
        lengths = array("Q")
        for tool in self.tools.values():
            lengths.extend(tool.lengths)
        judged = self.outcomes[True] + self.outcomes[False]
        ratios = sum(KEEP[name] * count for name, count in self.categories.items())
        return {
            "trajectories": self.trajectories,
            "transitions": self.transitions,
            "tasks": len(self.tasks),
            "observations": {kind: self.kinds[kind] for kind in ("tool", "user", "environment")},
            "judged": judged,
            "success_share": _share(self.outcomes[True], judged),
            "rewarded": len(self.rewards),
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
    """Return minimum, median, 95th percentile (nearest rank) and maximum; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    rank = -(-95 * len(ordered) // 100)  # rounded up
    return {"min": ordered[0], "median": median, "p95": ordered[rank - 1], "max": ordered[-1]}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def summarize(
    source: str | Path, summary: Summary, watch: Callable[[Iterable[Any]], Iterable[Any]] = iter
) -> dict[str, Any]:
    """Add a file's transitions, or else its trajectories, to a summary, and return its figures.

    They have `easy_share`, of `easy_of` samples, if `wm data easy` left its scores beside the file; or `notes`, if the scores
    there are of other transitions.
    """
    records = watch(read_transitions(source) if holds_transitions(source) else read(source))
    path = scores_beside(source)
    scores = _scores(path) if path.is_file() else []
    found: list[Key] = []
    for record in records:
        summary.add(record)
        if scores:
            found += _keys(record)
    figures = summary.as_dict()
    if not scores:
        return figures
    if found != [key for key, _, kept in scores if kept]:
        return figures | {"notes": [f"{path} has the scores of other transitions: no share of easy ones is shown"]}
    return figures | {"easy_share": sum(easy for _, easy, _ in scores) / len(scores), "easy_of": len(scores)}


def _scores(path: Path) -> list[tuple[Key, bool, bool]]:
    """Read the scores that `wm data easy` wrote: the key of each transition, whether it is easy, and whether it was kept."""
    try:
        rows = [loads(line) for line in path.read_bytes().splitlines() if line]
        return [((row["trajectory"], row["turn"], row["call"]), bool(row["easy"]), bool(row["kept"])) for row in rows]
    except (ValueError, LookupError, TypeError, OSError):
        raise UserError(f"{path}: not what wm data easy writes; remove it, or move it elsewhere") from None


def _keys(record: Trajectory | Transition) -> list[Key]:
    if isinstance(record, Transition):
        return [(record.trajectory, record.turn, record.observation.call)]
    name = identity(record)
    return [(name, number, observation.call) for number, _, observation in record.observed()]


def scores_beside(source: str | Path) -> Path:
    """Return the path of the scores that `wm data easy` leaves beside its output."""
    return Path(source).with_name(f"{Path(source).stem}.easy.jsonl")
