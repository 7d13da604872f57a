"""A factor of all rates that changes while a policy trains: by the step, or by how often it succeeds.

`{by: step, start: 0.0, end: 1.0, steps: 200}` goes from `start` to `end` in a straight line over so many iterations, and stays.
`{by: success, start: 0.2, end: 1.0, change: 0.1, every: 10, above: 0.7, below: 0.3}` decides every 10 iterations: by 0.1 towards
`end` where at least 0.7 of the episodes since then succeeded, and back towards `start` where fewer than 0.3 did. With `end` below
`start` the world becomes easier where the policy succeeds. An iteration is a rollout of one batch of prompts. Ours: the paper
does not say how its controls change in a run.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from wm_plugin.errors import UserError, nearest, shown

LOG = "wm/control_strength"
_OF_SUCCESS = ("change", "every", "above", "below")


@dataclass(frozen=True)
class Curriculum:
    """How the factor changes; `Strength` is the factor itself.

    Raises:
        UserError: a value does not fit; the message begins with the field.
    """

    by: str = field(default="step", metadata={"help": "step or success."})
    start: float = field(default=0.0, metadata={"help": "The first factor of all rates, between 0 and 1."})
    end: float = field(default=1.0, metadata={"help": "The last."})
    steps: int = field(default=100, metadata={"help": "by step: iterations from the first to the last."})
    change: float = field(default=0.1, metadata={"help": "by success: how far the factor goes at once."})
    every: int = field(default=10, metadata={"help": "by success: iterations between decisions."})
    above: float = field(default=0.7, metadata={"help": "by success: the share of successes from which it goes on."})
    below: float = field(default=0.3, metadata={"help": "by success: the share under which it goes back."})

    def __post_init__(self) -> None:
        if self.by not in ("step", "success"):
            raise UserError(f"by is {shown(self.by)}; write step or success")
        for name in ("start", "end", "change", "above", "below"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f"{name} is {shown(value)}; write a number between 0 and 1")
        for name in ("steps", "every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(f"{name} is {shown(value)}; write a whole number >= 1")
        if self.below > self.above:
            raise UserError(f"below is {self.below}, more than above, {self.above}; write a smaller one")

    @classmethod
    def from_mapping(cls, values: Any, where: str = "curriculum") -> "Curriculum":
        """The curriculum that a config describes.

        Raises:
            UserError: it is no mapping, has another key or one of the other way, or a value does not fit.
        """
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            raise UserError(
                f"{where} is {shown(values)}; write a mapping, e.g. {{by: step, start: 0.0, end: 1.0, steps: 200}}"
            )
        names = [one.name for one in fields(cls)]
        for key in values:
            if key not in names:
                raise UserError(f"{where} has no field {shown(key)}{nearest(key, names)}")
            if (key == "steps") if values.get("by") == "success" else (key in _OF_SUCCESS):
                raise UserError(f"{where}.{key} is not of by: {values.get('by', 'step')}; leave it out")
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{where}.{error}") from None


@dataclass
class Strength:
    """The factor of the next rollout, `value`, and the episodes since its last decision."""

    curriculum: Curriculum
    value: float = field(init=False)
    iterations: int = field(default=0, init=False)  # by step: of the run; by success: since the last decision
    episodes: int = field(default=0, init=False)
    successes: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.value = float(self.curriculum.start)

    def end_iteration(self, successes: Iterable[float]) -> None:
        """Count a rollout: the success of each episode, over all ranks and workers."""
        successes, given = list(successes), self.curriculum
        self.iterations += 1
        if given.by == "step":
            share = min(1.0, self.iterations / given.steps)
            self.value = given.start + share * (given.end - given.start)
            return
        self.episodes += len(successes)
        self.successes += math.fsum(successes)
        if self.iterations < given.every:
            return
        share = self.successes / self.episodes if self.episodes else math.nan
        towards = given.end if share >= given.above else given.start if share < given.below else self.value
        self.value = _towards(self.value, towards, given.change)
        self.iterations = self.episodes = 0
        self.successes = 0.0

    def take(self, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """End an iteration with the figures of its episodes (`metrics.episode`). Returns their factor, for the log."""
        log = {LOG: self.value}
        self.end_iteration([figures["success"] for figures in episodes if "success" in figures])
        return log

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values, for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Take over the state of a checkpoint.

        Returns:
            False, and nothing changes, if the checkpoint has another curriculum: the user has changed it.
        """
        if state.get("curriculum") != asdict(self.curriculum):
            return False
        for name in ("value", "iterations", "episodes", "successes"):
            setattr(self, name, state[name])
        return True


def _towards(value: float, target: float, change: float) -> float:
    return min(target, value + change) if target > value else max(target, value - change)
