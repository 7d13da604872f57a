"""A factor of all rates that changes while a policy trains: by the step, or by how often it succeeds.

`{by: step, start: 0.0, end: 1.0, steps: 200}` goes from `start` to `end` in a straight line over so many iterations, and stays.
`{by: success, start: 0.2, end: 1.0, change: 0.1, every: 10, above: 0.7, below: 0.3}` decides every 10 iterations: by 0.1 towards
`end` where at least 0.7 of the episodes since then succeeded, and back towards `start` where fewer than 0.3 did. With `end` below
`start` the world becomes easier where the policy succeeds. An iteration is a rollout of one batch of prompts. Ours: the paper
does not say how its controls change in a run.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import model_validator

from wm_plugin.errors import UserError
from wm_plugin.options import Number, Options, Whole, option

LOG = "wm/control_strength"
_STATE = ("value", "iterations", "episodes", "successes")
_ONLY = {"step": ("steps",), "success": ("change", "every", "above", "below")}
_SHARE = "a number between 0 and 1"


class Curriculum(Options):
    """How the factor changes; `Strength` is the factor itself."""

    example = "{by: step, start: 0.0, end: 1.0, steps: 200}"

    by: Literal["step", "success"] = option("step or success.", default="step")
    start: Number = option("The first factor of all rates, between 0 and 1.", default=0.0, ge=0, le=1, write=_SHARE)
    end: Number = option("The last.", default=1.0, ge=0, le=1, write=_SHARE)
    steps: Whole = option("by step: iterations from the first to the last.", default=100, ge=1)
    change: Number = option("by success: how far the factor goes at once.", default=0.1, ge=0, le=1, write=_SHARE)
    every: Whole = option("by success: iterations between decisions.", default=10, ge=1)
    above: Number = option(
        "by success: the share of successes from which it goes on.", default=0.7, ge=0, le=1, write=_SHARE
    )
    below: Number = option("by success: the share under which it goes back.", default=0.3, ge=0, le=1, write=_SHARE)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for name in _ONLY["step" if self.by == "success" else "success"]:
            if name in self.model_fields_set:
                raise UserError(f"{name} is not of by: {self.by}; leave it out")
        if self.below > self.above:
            raise UserError(f"below is {self.below}, more than above, {self.above}; write a smaller one")
        return self


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
        state = {name: getattr(self, name) for name in _STATE}
        return {"curriculum": self.curriculum.model_dump(mode="json"), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Take over the state of a checkpoint.

        Returns:
            False, and nothing changes, if the checkpoint has another curriculum: the user has changed it.
        """
        if state.get("curriculum") != self.curriculum.model_dump(mode="json"):
            return False
        for name in _STATE:
            setattr(self, name, state[name])
        return True


def _towards(value: float, target: float, change: float) -> float:
    return min(target, value + change) if target > value else max(target, value - change)
