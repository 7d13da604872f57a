"""Policies without a model: experts and wanderers of our environments, for tests, demonstrations and small recipes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.worlds.agents.rollout import Policy
from wm_plugin.worlds.kit.protocol import Chooser

DIRECTIONS = "UDLR"


def call(name: str, **arguments: Any) -> Action:
    """Return an action of one tool call."""
    return Action(calls=(Call(name=name, arguments=arguments),))


def scripted(choose: Chooser) -> Policy:
    """Return an expert or wanderer, such as `maze.expert()` or `grid.wanderer(rng)`, as a policy of `agents.play`."""

    def act(_: Trajectory, environment: Any) -> Action | None:
        tool_call = choose(environment)
        return None if tool_call is None else Action(calls=(Call(name=tool_call[0], arguments=tool_call[1]),))

    return act


def directions(rng: random.Random) -> Callable[[Trajectory, Any, int], Sequence[Action]]:
    """Propose `count` different moves in the grid or the maze, drawn uniformly, for `alternatives.iwm`."""
    return lambda _, _environment, count: [
        call("move", direction=direction) for direction in rng.sample(DIRECTIONS, min(count, len(DIRECTIONS)))
    ]
