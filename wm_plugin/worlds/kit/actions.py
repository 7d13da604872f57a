"""The base class of worlds whose one tool takes several actions at once: `move up; move up; push left` (WMAct).

Text that is not a list of actions counts as one invalid action. It never raises.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall

MAX_ACTIONS = 50  # in one text; all that follow are one invalid action
MAX_CHARACTERS = 4000  # a longer text is one invalid action
State = TypeVar("State", bound=Hashable)


def parse(text: Any, is_action: Callable[[str], bool], max_actions: int = MAX_ACTIONS) -> list[str | None]:
    """Return the actions of a text in order, at least one; None stands for an invalid one.

    Actions are separated by semicolons, in any case and spacing; one pair of `<action>` tags may enclose them.

    Args:
        is_action: whether the world has an action of this name (lower case, single spaces, ASCII).
        max_actions: how many are taken from the text; all that follow are one invalid action.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return [None]
    text = text.strip()
    if text.startswith("<action>") and text.endswith("</action>"):
        text = text[len("<action>") : -len("</action>")]
    names = [" ".join(part.split()) for part in text.split(";") if part.strip()]
    # ASCII only, because a few other letters turn into plain ones in lower case
    actions = [name.lower() if name.isascii() and is_action(name.lower()) else None for name in names[:max_actions]]
    return actions + [None] * (len(names) > max_actions or not names)


class ActionEnvironment(CountedEnvironment, ABC):
    """A turn is a text of actions; an action is effective when it changes the state.

    Once the goal is reached, the remaining actions of a text are neither run nor counted.
    """

    observer = "environment"
    refusals: tuple[str, ...] = ()  # an observation counts invalid actions in its first line
    _known: Container[str] = ()  # the world's actions
    _max_actions = MAX_ACTIONS  # in one turn

    def _begin(self) -> None:
        super()._begin()
        self._actions = 0

    def _start(self, max_turns: int) -> str:
        self._begin()
        self.max_turns = max_turns
        return self._observation()

    def _act(self, text: Any) -> str:
        """Run the actions of a turn and return the observation; its first line counts the invalid actions, if there are any."""
        self._take_turn()
        actions, invalid = 0, 0
        for action in parse(text, self._is_action, self._max_actions):
            before = self._state()
            actions += 1
            invalid += action is None or not self._apply(action)
            self._effective += self._state() != before
            if self._ended:
                break
        self._actions += actions
        self._invalid += invalid
        return (f"Invalid: {invalid} of {actions}\n" if invalid else "") + self._observation()

    def _end_at(self, goal: bool) -> None:
        """End the episode with reward 1 if the goal is reached."""
        if goal:
            self._ended, self._reward = True, 1.0

    def _is_action(self, action: str) -> bool:
        return action in self._known

    @abstractmethod
    def _apply(self, action: str) -> bool:
        """Run an action, end the episode if it reaches the goal, and return whether the action was valid."""

    @abstractmethod
    def _state(self) -> Hashable:
        """The state; an action is effective if it changes this value."""

    @abstractmethod
    def _observation(self) -> str:
        """The state as text."""

    @property
    def metrics(self) -> dict[str, Any]:
        return super().metrics | {"actions": self._actions}  # a turn may have several actions

    @property
    def _mark(self) -> str:
        return "!" if self.over else ">"


def call_of(actions: Sequence[str], tool: str = "act", argument: str = "actions") -> ToolCall | None:
    """Return the call that takes these actions, or None if there are none."""
    return (tool, {argument: "; ".join(actions)}) if actions else None


def wandering(rng: random.Random, actions: Sequence[str], *tool: str) -> Chooser:
    """Return a policy that takes one to three random actions a turn."""
    return lambda _: call_of(rng.choices(actions, k=rng.randint(1, 3)), *tool)


def shortest_plan(
    start: State, successors: Callable[[State], Iterable[tuple[str, State]]], is_goal: Callable[[State], bool]
) -> list[str] | None:
    """Return a shortest list of actions from `start` to a goal by breadth-first search, or None.

    `successors` returns (action, next state) for every action that is possible in a state.
    """
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = [start]
    for state in queue:
        if is_goal(state):
            plan = []
            while (step := came_from[state]) is not None:
                state, action = step
                plan.append(action)
            return plan[::-1]
        for action, following in successors(state):
            if following not in came_from:
                came_from[following] = (state, action)
                queue.append(following)
    return None


def distances(goal: State, neighbours: Callable[[State], Iterable[State]]) -> dict[State, int]:
    """Count the steps to `goal` from every state that can reach it; `neighbours` are those one step farther away."""
    lengths, queue = {goal: 0}, [goal]
    for state in queue:
        for neighbour in neighbours(state):
            if neighbour not in lengths:
                lengths[neighbour] = lengths[state] + 1
                queue.append(neighbour)
    return lengths
