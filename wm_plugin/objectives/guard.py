"""Lowers the coefficient when the objective begins to memorise, or when the policy's entropy collapses.

"True Agents Model the World" saw runs overfit (web search, whose results can be memorised, after about one epoch) and collapse
(after 50 to 600 steps), in their rewards and evaluations. The guard is not the paper's, which does not watch entropy:

    the held-out NLL of environment tokens rises in k evaluations in a row while the training NLL falls, or
    the policy's entropy falls under a share of its value at the first step
        ->  the coefficient is multiplied by `factor`, from the next optimizer step on, and stays so.

A state machine on floats, which are the same on all ranks. Hosts pass it every optimizer step and every evaluation.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wm_plugin.errors import UserError, nearest
from wm_plugin.options import Names, Number, Options, Whole, option


class GuardConfig(Options):
    """When the guard acts, and how strongly."""

    k: Whole = option(
        "How many evaluations in a row the held-out NLL must rise, while the training NLL is lower than before them.",
        default=3,
        ge=1,
        write="a whole number of evaluations >= 1",
    )
    factor: Number = option(
        "What the coefficient is multiplied by each time; 0 turns the objective off.", default=0.5, ge=0, lt=1
    )
    share: Number = option(
        "The guard acts under this share of the policy's first entropy. 0: never.", default=0.2, ge=0, lt=1
    )
    sets: Names | None = option(
        "The evaluation sets whose environment tokens are watched, e.g. ['held_out']; null for all of them together.",
        default=None,
        write="names of evaluation sets, e.g. ['held_out'], or null for all of them",
        min_length=1,
    )


def as_guard(value: Any) -> Any:
    """Convert `true` to the default guard and `false` to no guard, for a field that takes a `GuardConfig`."""
    return GuardConfig() if value is True else None if value is False else value


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    multiplier: float = 1.0  # of the coefficient
    step: int = -1  # of the last evaluation that counted
    # [held-out NLL, training NLL] of the evaluations that rise in a row, from the one before them on; at most k + 1
    rising: list[Annotated[list[float | None], Field(min_length=2, max_length=2)]] = []
    nll: float = 0.0  # in training since the last evaluation, over `tokens`
    tokens: float = 0.0
    entropy: float | None = None  # of the last step
    start: float | None = None  # of the first step that had one
    calm: int | None = None  # steps in a row above the share, at most k; None: it was never under


class Guard:
    """The guard of a run."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._state = _State()
        self._blind = False  # whether it was reported that there is nothing to watch

    @property
    def multiplier(self) -> float:
        """Return the factor on the coefficient: 1.0 until the guard acts."""
        return self._state.multiplier

    def after_step(self, *, nll: float, tokens: float, entropy: float | None) -> str | None:
        """Record an optimizer step; return a message if the guard acts because the entropy has fallen under its share.

        Args:
            nll: summed over its environment tokens that count. tokens: their number, 0 if there are none.
            entropy: the policy's, a mean over its tokens; None if the host has none.
        """
        state, k = self._state, self.config.k
        if math.isfinite(nll):
            state.nll += nll
            state.tokens += tokens
        if entropy is None or not math.isfinite(entropy):
            return None
        state.entropy = entropy
        if state.start is None:
            state.start = entropy
        if entropy >= self.config.share * state.start:
            state.calm = None if state.calm is None else min(state.calm + 1, k)
            return None
        acts, state.calm = state.calm is None or state.calm == k, 0
        if not acts:
            return None
        reason = f"the policy's entropy is {entropy:.3g}, under {self.config.share:g} of its start ({state.start:.3g})"
        return self._act(reason)

    def after_evaluation(self, step: int, sets: Mapping[str, tuple[float, float]]) -> str | None:
        """Record an evaluation. One without environment tokens does not count, nor does a second one of the same step.

        Args:
            step: optimizer steps so far.
            sets: the summed NLL of each set's environment tokens that count, and their number.

        Returns:
            A message if the guard acts because the objective memorises, or if for the first time it has nothing to watch.

        Raises:
            UserError: a set in the config does not exist.
        """
        for name in self.config.sets or ():
            if name not in sets:
                raise UserError(f"guard.sets: there is no evaluation set {name!r}{nearest(name, sets)}")
        state = self._state
        watched = [sets[name] for name in self.config.sets or sets]
        tokens = math.fsum(number for _, number in watched)
        if not tokens:
            blind, self._blind = self._blind, True
            return (
                None if blind else "guard: an evaluation had no environment tokens that count, so that it did not count"
            )
        held_out = math.fsum(nll for nll, _ in watched) / tokens
        if step <= state.step or not math.isfinite(held_out):
            return None
        training = state.nll / state.tokens if state.tokens else None
        state.step, state.nll, state.tokens = step, 0.0, 0.0
        last = state.rising[-1][0] if state.rising else None
        if last is None or held_out <= last:
            state.rising = []
        state.rising = [*state.rising, [held_out, training]][-self.config.k - 1 :]
        if self.rises < self.config.k or training is None:
            return None
        (before, _), (now, _) = state.rising[0], state.rising[-1]
        start = next((value for _, value in state.rising[:-1] if value is not None), None)
        if start is None or training >= start:
            return None
        state.rising = state.rising[-1:]
        times = "an evaluation" if self.config.k == 1 else f"{self.config.k} evaluations in a row"
        return self._act(
            f"the NLL of held-out environment tokens rose in {times} ({before:.3f} to {now:.3f}) while that of training fell "
            f"({start:.3f} to {training:.3f})"
        )

    @property
    def rises(self) -> int:
        """Return in how many evaluations in a row the held-out NLL has risen, since the guard last acted on that."""
        return max(0, len(self._state.rising) - 1)

    def _act(self, reason: str) -> str:
        self._state.multiplier *= self.config.factor
        return f"guard: {reason}; the coefficient is now {self.multiplier:g} of what the config says"

    def figures(self) -> dict[str, float]:
        """Return the logged figures: the multiplier, the rises in a row, and the entropy as a share of its start."""
        state = self._state
        values = {"guard/multiplier": state.multiplier, "guard/rises": float(self.rises)}
        if state.start and state.entropy is not None:
            values["guard/entropy"] = state.entropy / state.start
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        return {"config": self.config.model_dump(mode="json"), "state": self._state.model_dump()}

    def load_state_dict(self, saved: Any) -> bool:
        """Take over a checkpoint's state.

        Returns:
            False, and the guard begins afresh, if the state is of a guard with other settings, or not a guard's.
        """
        self._state = _State()
        if not isinstance(saved, Mapping) or saved.get("config") != self.config.model_dump(mode="json"):
            return False
        try:
            state = _State.model_validate(saved.get("state"))
        except ValidationError:
            return False
        if state.model_fields_set != _State.model_fields.keys():
            return False
        self._state = state
        return True
