"""Worlds whose one tool takes several actions at once: `move up; move up; push left` (WMAct).

A text that is no list of actions is an invalid action, whatever it is, and never an error.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

from wm_plugin.environments.kit.counted import CountedEnvironment

MAX_ACTIONS = 50  # in one text; what comes after them is one invalid action
MAX_CHARACTERS = 4000  # a longer text is one invalid action


def parse(text: Any, known: Callable[[str], bool], max_actions: int = MAX_ACTIONS) -> list[str | None]:
    """The actions of a text in their order, at least one; None stands for an invalid one.

    Actions are separated by semicolons, in any case and spacing; one pair of `<action>` tags may stand around all of them.

    Args:
        known: whether the world has an action of this name (lower case, single spaces, ASCII).
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return [None]
    text = text.strip()
    if text.startswith("<action>") and text.endswith("</action>"):
        text = text[len("<action>") : -len("</action>")]
    names = [" ".join(part.split()) for part in text.split(";") if part.strip()]
    # ASCII only, because a few other letters turn into plain ones in lower case
    actions = [name.lower() if name.isascii() and known(name.lower()) else None for name in names[:max_actions]]
    return actions + [None] * (len(names) > max_actions or not names)


class ActionEnvironment(CountedEnvironment, ABC):
    """What these worlds share: a turn is a text of actions, and an action is effective when it changes the state.

    Once the goal is reached, what is left of a text is neither run nor counted.
    """

    _max_actions = MAX_ACTIONS  # a turn

    def _begin(self) -> None:
        super()._begin()
        self.success, self._actions = False, 0

    def _start(self, max_turns: int) -> str:
        self._begin()
        self.max_turns = max_turns
        return self._observation()

    def _act(self, text: Any) -> str:
        """Run a turn and return what it shows; a first line says how many actions were invalid, if any was."""
        self._take_turn()
        actions, invalid = 0, 0
        for action in parse(text, self._known, self._max_actions):
            before = self._state()
            actions += 1
            invalid += action is None or not self._apply(action)
            self._effective += self._state() != before
            if self._ended:
                break
        self._actions += actions
        self._invalid += invalid
        return (f"Invalid: {invalid} of {actions}\n" if invalid else "") + self._observation()

    @abstractmethod
    def _known(self, action: str) -> bool:
        """Whether there is such an action."""

    @abstractmethod
    def _apply(self, action: str) -> bool:
        """Run a known action, set `success` and `_ended`, and return whether the world took it; False: it is invalid."""

    @abstractmethod
    def _state(self) -> Hashable:
        """What an effective action changes."""

    @abstractmethod
    def _observation(self) -> str:
        """The state as text."""

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def metrics(self) -> dict[str, int]:
        return super().metrics | {"actions": self._actions}  # of which a turn may have several

    @property
    def _mark(self) -> str:
        return "!" if self.over else ">"
