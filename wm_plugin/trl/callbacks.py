"""Callbacks that save our state in TRL's checkpoints, beside the model."""

import logging
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)

# Keys in trainer_state.json, among the states of callbacks.
KEY = "wm_turn_budget"
GUARD_KEY = "wm_guard"
STRENGTH_KEY = "wm_control"


class StateCallback(TrainerCallback):
    """Keeps an object's state in `trainer_state.json`, which is written with each checkpoint, and loads it on resume.

    Args:
        kept: has `state_dict`, and `load_state_dict`, which returns False for the state of other settings.
        name: what a warning calls it.
        otherwise: what becomes of it without a state, for a warning; a format that may use the object: `starts at {0.turns}`.
    """

    def __init__(self, key: str, kept: Any, name: str, otherwise: str) -> None:
        self.key, self.kept, self._name, self._otherwise = key, kept, name, otherwise

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        saved = (state.stateful_callbacks or {}).get(self.key)
        if not self.kept.load_state_dict(saved or {}) and state.global_step:
            has = f"no {self._name}" if saved is None else f"a {self._name} of other settings"
            logger.warning("the checkpoint has %s: it %s", has, self._otherwise.format(self.kept))

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.keep(state)

    def keep(self, state: Any) -> None:
        """Put the state into the trainer's, which is written with each checkpoint."""
        state.stateful_callbacks[self.key] = self.kept.state_dict()


class EndCallback(TrainerCallback):
    """Calls a function as training ends, on every rank."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._function()
