"""Proposals of other actions in the states of an expert's trajectories, from a wanderer or a model.

In the early-experience baselines (RWML, section 3.1 and appendix B.3) the target model proposes them: the policy to be trained,
not the expert. Our commands sample it at temperature 1.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from wm_plugin.client.answers import Answers
from wm_plugin.client.predict import seed_of
from wm_plugin.data.schema import Action, Call, Trajectory
from wm_plugin.runtime.workers import Lost
from wm_plugin.worlds.agents.acting import Situation, action_of_answer
from wm_plugin.worlds.worlds import World

_TRIES = 16  # a wanderer's draws for each action: most are equal if there are few actions


class Proposer(Protocol):
    """An `alternatives.Propose` that can prepare for whole trajectories first."""

    def prepare(self, trajectories: list[Trajectory]) -> None: ...

    def __call__(self, trajectory: Trajectory, environment: Any, count: int) -> Iterator[Action]: ...


class RandomProposals:
    """Actions of the world's wanderer. A draw depends only on the seed, the task and the turn."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self._world, self._seed = world, seed

    def prepare(self, trajectories: list[Trajectory]) -> None:
        """Nothing to prepare."""

    def __call__(self, trajectory: Trajectory, environment: Any, count: int) -> Iterator[Action]:
        state = f"{self._seed}/{trajectory.task_id}/{trajectory.context.initial_state}/{len(trajectory.turns)}"
        choose = self._world.wanderer(random.Random(state.encode(errors="surrogatepass")))
        for _ in range(count * _TRIES):
            if (chosen := choose(environment)) is None:
                return
            yield Action(calls=(Call(name=chosen[0], arguments=chosen[1]),))


class ModelProposals:
    """Actions of a model in the agent's place. Answers without a call are left out.

    Args:
        answers: from an `acting.ServerActor` or `LocalActor`; stored ones are not asked again.
        draws: answers for each state. Ask for more than the wanted alternatives, since some are equal or the expert's.
        counts: counts answers without a call, and failures by reason.
    """

    def __init__(self, answers: Answers, *, draws: int = 6, seed: int = 0, counts: Counter[str] | None = None) -> None:
        self._answers, self._draws, self._seed = answers, draws, seed
        self._counts = Counter() if counts is None else counts

    def prepare(self, trajectories: list[Trajectory]) -> None:
        """Ask about all states of these trajectories in one batch."""
        states = [
            trajectory.model_copy(update={"turns": trajectory.turns[:number]})
            for trajectory in trajectories
            for number in range(len(trajectory.turns))
        ]
        self._actions(states)

    def __call__(self, trajectory: Trajectory, environment: Any, count: int) -> Iterator[Action]:
        del environment, count
        for action in self._actions([trajectory]):
            if isinstance(action, Lost):
                self._counts[f"proposal failed: {action.kind}"] += 1
            elif action.calls:
                yield action
            else:
                self._counts["proposal without a call"] += 1

    def _actions(self, states: list[Trajectory]) -> list[Action | Lost]:
        asked = [(state, draw) for state in states for draw in range(self._draws)]
        seeds = [seed_of(f"{self._seed}/{len(state.turns)}/{draw}") for state, draw in asked]
        return [action_of_answer(one) for one in self._answers([Situation(state) for state, _ in asked], seeds=seeds)]


def prepared(
    trajectories: Iterable[Trajectory], proposals: Proposer, environment: str, *, at_once: int = 64
) -> Iterator[Trajectory]:
    """Yield the trajectories, each after `proposals` was prepared for its group of `at_once`.

    Args:
        environment: the class's path, as in a trajectory's metadata; trajectories of other worlds are not prepared.
    """
    rest = iter(trajectories)
    while group := list(islice(rest, at_once)):
        proposals.prepare([one for one in group if one.metadata.get("environment") == environment])
        yield from group
