"""The coefficient over training: a share of the way from `coeff` to `end_coeff`, from the optimizer step alone.

A function of the step needs no state, so a resumed run continues correctly. "step" is the authors' open idea of training
with the objective first and with pure reinforcement learning after (ECHO, discussion).
"""

import math
from collections.abc import Callable

# progress t in [0, 1] -> share of `coeff` that is left; the rest is `end_coeff`
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: 0.5 * (1.0 + math.cos(math.pi * t)),
    "step": lambda t: 1.0 if t < 1.0 else 0.0,
}


def scheduled(schedule: str, start: float, end: float, steps: int | None, step: int) -> float:
    """Return the value at step `step` (0-based) of a schedule that reaches `end` after `steps` steps and then stays there."""
    progress = min(step / steps, 1.0) if steps else 0.0
    share = SCHEDULES[schedule](progress)
    return start if share == 1.0 else end + (start - end) * share
