"""What changes while a policy trains: the turns that an episode may take (WMAct), and the strength of perturbations.

Both change after iterations: rollouts of one batch of prompts, whatever updates follow.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import PrivateAttr, model_validator

from wm_plugin.errors import UserError
from wm_plugin.options import Number, Options, Whole, option

LOG = "wm/control_strength"
_STATE = ("value", "iterations", "episodes", "successes")
_ONLY = {"step": ("steps",), "success": ("change", "every", "above", "below")}
_SHARE = "a number between 0 and 1"


class TurnBudget(Options):
    """The turn budget of WMAct, which shrinks to what the policy needs: with fewer turns it must foresee more.

    Every τ iterations (50, 100 or 150 in the paper, which starts at 30 turns) the budget becomes

        L_max = (mean turns + max turns) / 2          over the episodes since the last change

    The paper says nothing about rounding, window and direction. Here L_max is rounded up, is at least 1 and never rises. Turns
    are those that episodes took in their environment.
    """

    example = "{start: 30, every: 100}"

    start: Whole = option("The first budget, in turns.", default=30, ge=1)
    every: Whole = option("The iterations between changes (the paper's τ).", default=100, ge=1)
    _state: dict[str, Any] = PrivateAttr(default_factory=dict)  # `turns`, and counts since the last change

    def model_post_init(self, _context: Any, /) -> None:
        self._state = {"turns": self.start, "iterations": 0, "episodes": 0, "total": 0.0, "longest": 0.0}

    @property
    def turns(self) -> int:
        """The budget of the next rollout."""
        turns: int = self._state["turns"]
        return turns

    def end_iteration(self, turns: Iterable[float]) -> bool:
        """Count the turns of a rollout; return whether the budget was decided anew (its value may be the same).

        Args:
            turns: of each episode, over all ranks and workers.
        """
        turns, state = list(turns), self._state
        state["iterations"] += 1
        state["episodes"] += len(turns)
        state["total"] += math.fsum(turns)
        state["longest"] = max([state["longest"], *turns])
        if state["iterations"] < self.every:
            return False
        if state["episodes"]:
            budget = math.ceil((state["total"] / state["episodes"] + state["longest"]) / 2)
            state["turns"] = max(1, min(state["turns"], budget))
        state |= {"iterations": 0, "episodes": 0, "total": 0.0, "longest": 0.0}
        return True

    def take(self, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """End an iteration with the figures of its episodes (`metrics.episode`); return their budget, for the log."""
        log = {"wm/turn_budget": float(self.turns)}
        self.end_iteration([figures["turns"] for figures in episodes if "turns" in figures])
        return log

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        return {"start": self.start, "every": self.every, **self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Take over a checkpoint's state. False, and nothing changes, if the user has changed the settings since."""
        if (state.get("start"), state.get("every")) != (self.start, self.every):
            return False
        self._state = {name: state[name] for name in self._state}
        return True


class Curriculum(Options):
    """A factor of all rates of perturbations that changes by the step, or by how often the policy succeeds.

    `{by: step, start: 0.0, end: 1.0, steps: 200}` goes from `start` to `end` in a straight line over so many iterations, and
    stays. `{by: success, start: 0.2, end: 1.0, change: 0.1, every: 10, above: 0.7, below: 0.3}` decides every 10 iterations: by
    0.1 towards `end` if at least 0.7 of the episodes since then succeeded, and back towards `start` if fewer than 0.3 did. With
    `end` below `start` the world becomes easier for a policy that succeeds. `Strength` is the factor itself.
    """

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
    iterations: int = 0  # by step: of the run; by success: since the last decision
    episodes: int = 0
    successes: float = 0.0

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
        target = given.end if share >= given.above else given.start if share < given.below else self.value
        step = given.change if target > self.value else -given.change
        nearest = min if target > self.value else max
        self.value = nearest(target, self.value + step)
        self.iterations, self.episodes, self.successes = 0, 0, 0.0

    def take(self, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """End an iteration with the figures of its episodes (`metrics.episode`); return their factor, for the log."""
        log = {LOG: self.value}
        self.end_iteration([figures["success"] for figures in episodes if "success" in figures])
        return log

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        state = {name: getattr(self, name) for name in _STATE}
        return {"curriculum": self.curriculum.model_dump(mode="json"), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Take over a checkpoint's state. False, and nothing changes, if the user has changed the curriculum since."""
        if state.get("curriculum") != self.curriculum.model_dump(mode="json"):
            return False
        for name in _STATE:
            setattr(self, name, state[name])
        return True
