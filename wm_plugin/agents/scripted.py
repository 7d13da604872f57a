"""Policies that need no model: experts and wanderers of our environments, for tests, demonstrations and small recipes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from wm_plugin.agents.rollout import Policy
from wm_plugin.environments.kit.protocol import Chooser
from wm_plugin.trajectories.schema import Action, Call, Trajectory

DIRECTIONS = "UDLR"


def call(name: str, **arguments: Any) -> Action:
    """An action of one tool call."""
    return Action(calls=(Call(name=name, arguments=arguments),))


def scripted(choose: Chooser) -> Policy:
    """The policy of an environment's expert or wanderer, such as `maze.expert()` or `grid.wanderer(rng)`."""

    def act(_: Trajectory, environment: Any) -> Action | None:
        chosen = choose(environment)
        return None if chosen is None else Action(calls=(Call(name=chosen[0], arguments=chosen[1]),))

    return act


def directions(rng: random.Random) -> Callable[[Trajectory, Any, int], Sequence[Action]]:
    """Proposes moves in the grid and the maze: `count` different ones, every set of them as likely as another."""
    return lambda _, _environment, count: [
        call("move", direction=direction) for direction in rng.sample(DIRECTIONS, min(count, len(DIRECTIONS)))
    ]
