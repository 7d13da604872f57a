"""What of ours is in TRL's checkpoints, beside the model."""

import logging
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from wm_plugin.hosting.annealing import Strength, TurnBudget
from wm_plugin.objectives.guard import Guard

logger = logging.getLogger(__name__)

# in trainer_state.json, among the states of callbacks
KEY = "wm_turn_budget"
GUARD_KEY = "wm_guard"
STRENGTH_KEY = "wm_control"


class TurnBudgetCallback(TrainerCallback):
    """Keeps a turn budget in `trainer_state.json`, which is written with each checkpoint, and goes on from there."""

    def __init__(self, budget: TurnBudget) -> None:
        self.budget = budget

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        saved = (state.stateful_callbacks or {}).get(KEY)
        if saved is None:
            if state.global_step:
                logger.warning("the checkpoint has no turn budget: it starts at %d", self.budget.turns)
        elif not self.budget.load_state_dict(saved):
            logger.warning("the checkpoint's turn budget has other settings: it starts at %d", self.budget.turns)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        state.stateful_callbacks[KEY] = self.budget.state_dict()


class StrengthCallback(TrainerCallback):
    """Keeps the factor of a control's curriculum in `trainer_state.json`, and goes on from there."""

    def __init__(self, strength: Strength) -> None:
        self.strength = strength

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        saved = (state.stateful_callbacks or {}).get(STRENGTH_KEY)
        if not self.strength.load_state_dict(saved or {}) and state.global_step:
            has = "has no curriculum of the control" if saved is None else "has another curriculum of the control"
            logger.warning("the checkpoint %s: it starts at %g", has, self.strength.value)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        state.stateful_callbacks[STRENGTH_KEY] = self.strength.state_dict()


class GuardCallback(TrainerCallback):
    """Keeps a guard in `trainer_state.json`, and goes on from there."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        saved = (state.stateful_callbacks or {}).get(GUARD_KEY)
        if not self.guard.load_state_dict(saved) and state.global_step:
            has = "has no guard" if saved is None else "has a guard of other settings"
            logger.warning("the checkpoint %s: it starts anew", has)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.keep(state)

    def keep(self, state: Any) -> None:
        """Put the guard's state into the trainer's, which is written with each checkpoint."""
        state.stateful_callbacks[GUARD_KEY] = self.guard.state_dict()


class EndCallback(TrainerCallback):
    """Calls a function as training ends, on every rank."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._function()
