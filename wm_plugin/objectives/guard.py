"""The guard: it lowers the coefficient when the objective begins to memorise, or when the policy's entropy collapses.

"True Agents Model the World" saw runs overfit (web search, whose results can be memorised, after about one epoch) and collapse
(after 50 to 600 steps), in their rewards and evaluations. The paper has no guard, and does not watch entropy; this one is ours:

    the held-out NLL of environment tokens rises in k evaluations in a row while the training NLL falls, or
    the policy's entropy falls under a share of what it was at the first step
        ->  the coefficient is multiplied by `factor`, from the next optimizer step on, and stays so.

A state machine on floats, which are the same on all ranks. Hosts hand it every optimizer step and every evaluation.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.options import Names, Number, Options, Whole, option


class GuardConfig(Options):
    """When the guard acts, and how strongly.

    Raises:
        UserError: a value is out of its range; the message names the field, the value and what to write.
    """

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
    """`true` as the default guard, and `false` as no guard, for a field that takes a `GuardConfig`."""
    return GuardConfig() if value is True else None if value is False else value


@dataclass
class _State:
    """What a guard remembers, as JSON has it."""

    multiplier: float = 1.0  # of the coefficient
    step: int = -1  # of the last evaluation that counted
    # [held-out NLL, training NLL] of the evaluations that rise in a row, the one that they rise from first; no more than k + 1
    rising: list[list[float | None]] = dataclasses.field(default_factory=list)
    nll: float = 0.0  # in training since the last evaluation, over `tokens`
    tokens: float = 0.0
    entropy: float | None = None  # of the last step
    start: float | None = None  # of the first step that had one
    calm: int | None = None  # steps in a row above the share, k at most; None: it was never under


_KINDS = {  # of the fields
    "multiplier": float | int,
    "step": int,
    "rising": list,
    "nll": float | int,
    "tokens": float | int,
    "entropy": float | int | None,
    "start": float | int | None,
    "calm": int | None,
}


class Guard:
    """The guard of a run."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._state = _State()
        self._blind = False  # whether it was said that there was nothing to watch

    @property
    def multiplier(self) -> float:
        """What the coefficient is multiplied by: 1.0 until the guard acts."""
        return self._state.multiplier

    def after_step(self, *, nll: float, tokens: float, entropy: float | None) -> str | None:
        """Take note of an optimizer step.

        Args:
            nll: summed over its environment tokens that count. tokens: their number, 0 if there are none.
            entropy: the policy's, a mean over its tokens; None where the host has none.

        Returns:
            What to say if the guard acts, now that the entropy has fallen under its share.
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
        """Take note of an evaluation. One without environment tokens does not count, nor a second one of the same step.

        Args:
            step: optimizer steps so far.
            sets: the summed NLL of each set's environment tokens that count, and their number.

        Returns:
            What to say if the guard acts, now that the objective memorises, or if for the first time it has nothing to watch.

        Raises:
            UserError: there is no set of a name in the config.
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
        """In how many evaluations in a row the held-out NLL has risen, since the guard last acted on that."""
        return max(0, len(self._state.rising) - 1)

    def _act(self, reason: str) -> str:
        self._state.multiplier *= self.config.factor
        return f"guard: {reason}; the coefficient is now {self.multiplier:g} of what the config says"

    def figures(self) -> dict[str, float]:
        """What is logged of it: the multiplier, the rises in a row, and the entropy as a share of its start."""
        state = self._state
        values = {"guard/multiplier": state.multiplier, "guard/rises": float(self.rises)}
        if state.start and state.entropy is not None:
            values["guard/entropy"] = state.entropy / state.start
        return values

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values, for a checkpoint."""
        return {"config": self.config.model_dump(mode="json"), "state": dataclasses.asdict(self._state)}

    def load_state_dict(self, saved: Any) -> bool:
        """Take over the state of a checkpoint.

        Returns:
            False, and the guard begins anew, if it is of a guard with other settings, or no guard's state.
        """
        self._state = _State()
        if not isinstance(saved, Mapping) or saved.get("config") != self.config.model_dump(mode="json"):
            return False
        state: Any = saved.get("state")
        if not _is_state(state):
            return False
        self._state = _State(**copy.deepcopy(dict(state)))
        return True


def _is_state(value: Any) -> bool:
    if not isinstance(value, Mapping) or value.keys() != _KINDS.keys():
        return False
    if not all(isinstance(value[name], kind) for name, kind in _KINDS.items()):
        return False
    pairs = [pair for pair in value["rising"] if isinstance(pair, list) and len(pair) == 2]
    numbers = all(isinstance(a, float | int) and isinstance(b, float | int | None) for a, b in pairs)
    return numbers and len(pairs) == len(value["rising"])
