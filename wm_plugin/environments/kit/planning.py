"""The shortest plan in a world whose states can be searched, for experts and for the filtering of levels."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


def shortest_plan(
    start: State, successors: Callable[[State], Iterable[tuple[str, State]]], is_goal: Callable[[State], bool]
) -> list[str] | None:
    """A shortest list of actions from `start` to a goal, found breadth first; None where no goal can be reached."""
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
