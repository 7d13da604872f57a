"""Implicit world modelling: what other actions than the expert's bring about in the states that the expert saw.

RWML's baseline IWM (section 3.1, appendices B.3 and C.4) trains on these transitions and on the expert's own turns
(`samples.constructions.imitation`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from wm_plugin.agents.rollout import path_of, replay
from wm_plugin.samples.constructions import acts
from wm_plugin.trajectories.expand import identity, transition
from wm_plugin.trajectories.schema import Action, Trajectory, Transition, Turn

# (the trajectory so far, the environment in that state, how many) -> actions that the agent might take
Propose = Callable[[Trajectory, Any, int], Iterable[Action]]


def iwm(
    trajectories: Iterable[Trajectory],
    environment: Any,
    propose: Propose,
    *,
    alternatives: int = 3,
    counts: Counter[str] | None = None,
) -> Iterator[Transition]:
    """Implicit world modelling: the transitions of an expert, and in each of its states those of other actions.

    Args:
        trajectories: of `agents.play` in this environment.
        environment: an instance; other actions run in it after the expert's have been played again.
        propose: the agent's other actions, such as the target model's at temperature 1, or `agents.scripted.directions`. The
            expert's action and duplicates are left out.
        alternatives: other actions a state, at most.
        counts: is filled with `expert` and `alternative` transitions, and trajectories that were left out, by reason.
    """
    counts = Counter() if counts is None else counts
    for trajectory in trajectories:
        branches = branch(trajectory, environment, propose, alternatives, counts)
        name = identity(trajectory)  # of the alternatives too: they are one task's, and share their history
        for number, others in enumerate(branches or ()):
            for turn in (trajectory.turns[number], *others):
                at_turn = trajectory.model_copy(update={"turns": (*trajectory.turns[:number], turn)})
                for observation in turn.observations:
                    counts["expert" if turn is trajectory.turns[number] else "alternative"] += 1
                    yield transition(at_turn, number, observation, name=name)


def branch(
    trajectory: Trajectory, environment: Any, propose: Propose, alternatives: int, counts: Counter[str]
) -> list[list[Turn]] | None:
    """What other actions bring about in each state of a trajectory: as many lists as it has turns.

    None if it is of another environment, or if an environment that does the same again does not show the same: then an
    alternative would not follow from the history that it is shown with. `counts` gets the reason.
    """
    row, host = trajectory.metadata.get("reset"), trajectory.metadata.get("host", "trl")
    if trajectory.metadata.get("environment") != path_of(environment) or not isinstance(row, dict):
        counts["of another environment"] += 1
        return None
    actions = [turn.action for turn in trajectory.turns]

    def reached(actions: Sequence[Action], number: int) -> Trajectory | None:
        """The trajectory of these actions, if its first turns are those of the expert."""
        played = replay(environment, row, actions, host=host)
        same = (
            played.context.initial_state == trajectory.context.initial_state
            and played.turns[:number] == trajectory.turns[:number]
        )
        return played if same else None

    found: list[list[Turn]] = []
    if reached(actions, len(actions)) is None:
        counts["does not replay"] += 1
        return None
    for number, action in enumerate(actions):
        so_far = reached(actions[:number], number)  # the environment is in this state when it is shown to `propose`
        others = _others(propose(so_far, environment, alternatives), action, alternatives) if so_far else []
        played = [reached([*actions[:number], other], number) for other in others]
        if so_far is None or None in played:
            counts["does not replay"] += 1
            return None
        found.append([other.turns[number] for other in played if other is not None])
    return found


def _others(proposed: Iterable[Action], action: Action, count: int) -> list[Action]:
    tried = {acts(action)}
    found: list[Action] = []
    for other in proposed:
        if len(found) < count and (does := acts(other)) not in tried:
            tried.add(does)
            found.append(other)
    return found
