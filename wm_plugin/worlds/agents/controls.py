"""Stand-ins for a world model that advises an agent. What the world model's advice is worth shows beside theirs.

An agent that is told no may do better, only because it tries again; one that acts on a coin's word tries other actions. Neither
knows the world. The oracle plays the action in the real environment, and bounds what any world model can bring.
"""

import hashlib
from collections.abc import Callable
from typing import Protocol

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.data.schema import Action, Trajectory, Turn


class Control(Protocol):
    """Says of an action whether it would succeed."""

    def succeeds(self, state: Trajectory, action: Action, draw: str) -> bool | None:
        """Whether the episode is won by the action; None: unknown.

        Args:
            state: the real episode so far; `metadata` has its row as `reset`.
            draw: tells this question from equal ones, for what is drawn.
        """
        ...


class Refuse:
    """Always no."""

    def __init__(self, environment: type) -> None:
        del environment

    def succeeds(self, state: Trajectory, action: Action, draw: str) -> bool | None:
        del state, action, draw
        return False


class Accept(Refuse):
    """Always yes."""

    def succeeds(self, state: Trajectory, action: Action, draw: str) -> bool | None:
        del state, action, draw
        return True


class Coin(Refuse):
    """Yes or no, each half of the time, by a hash of the question: a run that was killed goes on with the same."""

    def succeeds(self, state: Trajectory, action: Action, draw: str) -> bool | None:
        turns = [turn.model_dump_json() for turn in state.turns]
        text = "\n".join([draw, str(state.task_id), state.context.initial_state, *turns, action.model_dump_json()])
        return hashlib.sha256(text.encode(errors="replace")).digest()[0] < 128


class Oracle:
    """What happens in the real environment, in which the episode is played again from its row up to the action.

    It answers nothing (None) where the episode comes out differently, as in a world that draws what the row does not say.
    """

    def __init__(self, environment: type) -> None:
        self._environment = environment()

    def succeeds(self, state: Trajectory, action: Action, draw: str) -> bool | None:
        del draw
        actions = [*(turn.action for turn in state.turns), action]
        played = rollout.replay(self._environment, state.metadata["reset"], actions)
        if len(played.turns) < len(actions) or not all(map(_same, state.turns, played.turns)):
            return None
        return played.success


CONTROLS: dict[str, Callable[[type], Control]] = {
    "refuse": Refuse,
    "accept": Accept,
    "coin": Coin,
    "oracle": Oracle,
}


def _same(turn: Turn, again: Turn) -> bool:
    pairs = zip(turn.observations, again.observations, strict=False)
    return all(other.error or one.text == other.text for one, other in pairs)  # hosts word failures in their own ways
