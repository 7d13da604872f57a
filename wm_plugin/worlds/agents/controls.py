"""Stand-ins for a world model that advises an agent. What the world model's advice is worth shows beside theirs.

A control says of an action whether it wins the episode; None: unknown. An agent that is told no may do better, only because it
tries again; one that acts on a coin's word tries other actions. Neither knows the world. The oracle plays the action in the real
environment, and bounds what any world model can bring.
"""

import hashlib
from collections.abc import Callable

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.data.schema import Action, Trajectory, Turn

# (the real episode so far, whose `metadata` has its row as `reset`; an action; a text that tells this question from equal ones)
Control = Callable[[Trajectory, Action, str], bool | None]


def coin(state: Trajectory, action: Action, draw: str) -> bool:
    """Say yes or no, each half of the time, by a hash of the question: a run that was killed goes on with the same."""
    turns = [turn.model_dump_json() for turn in state.turns]
    text = "\n".join([draw, str(state.task_id), state.context.initial_state, *turns, action.model_dump_json()])
    return hashlib.sha256(text.encode(errors="replace")).digest()[0] < 128


def oracle(environment: type) -> Control:
    """Say what happens in the real environment, in which the episode is played again from its row up to the action.

    The answer is None where the episode comes out differently, as in a world that draws what the row does not say.
    """
    instance = environment()

    def succeeds(state: Trajectory, action: Action, _: str) -> bool | None:
        actions = [*(turn.action for turn in state.turns), action]
        played = rollout.replay(instance, state.metadata["reset"], actions)
        if len(played.turns) < len(actions) or not all(map(_same, state.turns, played.turns)):
            return None
        return played.success

    return succeeds


CONTROLS: dict[str, Callable[[type], Control]] = {  # of an environment
    "refuse": lambda _: lambda *_: False,
    "accept": lambda _: lambda *_: True,
    "coin": lambda _: coin,
    "oracle": oracle,
}


def _same(turn: Turn, again: Turn) -> bool:
    pairs = zip(turn.observations, again.observations, strict=False)
    return all(other.error or one.text == other.text for one, other in pairs)  # hosts word failures in their own ways
