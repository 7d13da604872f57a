"""Breadth-first search for a shortest plan, for experts and to filter levels by the length of their solution."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


def shortest_plan(
    start: State, successors: Callable[[State], Iterable[tuple[str, State]]], is_goal: Callable[[State], bool]
) -> list[str] | None:
    """A shortest list of actions from `start` to a goal; None if no goal can be reached.

    Args:
        successors: (action, next state) for every action that is possible in a state.
        is_goal: whether a state is a goal.
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
