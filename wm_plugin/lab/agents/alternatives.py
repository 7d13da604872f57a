"""Implicit world modelling: what other actions would do in the states of an expert's trajectories.

RWML's baseline IWM (section 3.1, appendices B.3 and C.4) trains on these transitions and on the expert's own turns
(`data.constructions.imitation`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from wm_plugin.data.constructions import acts
from wm_plugin.data.schema import Action, Trajectory, Transition, Turn
from wm_plugin.data.transitions import identity, transition, with_success
from wm_plugin.worlds.agents.rollout import path_of, replay

# (the trajectory so far, the environment in that state, how many) -> other possible actions
Propose = Callable[[Trajectory, Any, int], Iterable[Action]]


def iwm(
    trajectories: Iterable[Trajectory],
    environment: Any,
    propose: Propose,
    *,
    alternatives: int = 3,
    counts: Counter[str] | None = None,
) -> Iterator[Transition]:
    """Yield an expert's transitions and, in each of its states, those of other actions.

    Args:
        trajectories: played by `rollout.play` in this environment.
        environment: an instance, in which the expert's actions are replayed before each alternative.
        propose: proposes other actions, such as the target model's at temperature 1. Repetitions and the expert's own action are
            left out.
        alternatives: at most this many other actions for each state.
        counts: counts the `expert` and `alternative` transitions, and skipped trajectories by reason.
    """
    counts = Counter() if counts is None else counts
    for trajectory in trajectories:
        branches = branch(trajectory, environment, propose, alternatives, counts)
        name = identity(trajectory)  # the alternatives have the same name: same task, same history
        expert = with_success(trajectory).turns
        for number, others in enumerate(branches or ()):
            for turn in (expert[number], *others):
                at_turn = trajectory.model_copy(update={"turns": (*expert[:number], turn)})
                for observation in turn.observations:
                    counts["expert" if turn is expert[number] else "alternative"] += 1
                    yield transition(at_turn, number, observation, name=name)


def branch(
    trajectory: Trajectory, environment: Any, propose: Propose, alternatives: int, counts: Counter[str]
) -> list[list[Turn]] | None:
    """Return the turns of other actions in each state of a trajectory: one list for each of its turns.

    Returns None, with the reason in `counts`, for a trajectory from another environment or a world model, and for one that
    replays differently: an alternative would then not follow from its history.
    """
    if trajectory.metadata.get("synthetic"):
        counts["synthetic"] += 1
        return None
    row, host = trajectory.metadata.get("reset"), trajectory.metadata.get("host", "trl")
    if trajectory.metadata.get("environment") != path_of(environment) or not isinstance(row, dict):
        counts["of another environment"] += 1
        return None
    actions = [turn.action for turn in trajectory.turns]

    def replayed(actions: Sequence[Action], number: int) -> Trajectory | None:
        """Play these actions; return None unless the first `number` turns are the expert's."""
        played = replay(environment, row, actions, host=host)
        same = (
            played.context.initial_state == trajectory.context.initial_state
            and played.turns[:number] == trajectory.turns[:number]
        )
        return played if same else None

    branches: list[list[Turn]] = []
    try:
        replays = replayed(actions, len(actions)) is not None
    except Exception:  # the row does not fit this world, or no longer does
        replays = False
    if not replays:
        counts["does not replay"] += 1
        return None
    for number, action in enumerate(actions):
        so_far = replayed(actions[:number], number)  # `propose` gets the environment in this state
        others = _others(propose(so_far, environment, alternatives), action, alternatives) if so_far else []
        played = [replayed([*actions[:number], other], number) for other in others]
        if so_far is None or None in played:
            counts["does not replay"] += 1
            return None
        branches.append([with_success(other).turns[number] for other in played if other is not None])
    return branches


def _others(proposals: Iterable[Action], action: Action, count: int) -> list[Action]:
    """Return the first `count` proposals that differ from `action` and from one another."""
    keys = {acts(action)}
    others: list[Action] = []
    for proposal in proposals:
        if len(others) < count and (key := acts(proposal)) not in keys:
            keys.add(key)
            others.append(proposal)
    return others
