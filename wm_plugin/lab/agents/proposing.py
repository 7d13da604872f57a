"""Other actions that an agent might take in the states of an expert's trajectories: a wanderer's, or a model's.

The early-experience baselines (RWML, section 3.1 and appendix B.3) let the target model propose them, at temperature 1 in our
commands; it is the policy to be trained, not the expert.
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

_TRIES = 16  # draws of a wanderer for each action: where there are few actions, most are the same


class Proposer(Protocol):
    """A `Propose` of `agents.alternatives` that may be told of trajectories before it is asked about their states."""

    def prepare(self, trajectories: list[Trajectory]) -> None: ...

    def __call__(self, trajectory: Trajectory, environment: Any, count: int) -> Iterator[Action]: ...


class RandomProposals:
    """Actions of the world's wanderer. A draw depends only on the seed, the task, and the turn."""

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
    """Actions of a model in the place of the agent. What it says without a call acts on nothing, and is left out.

    Args:
        answers: of an `acting.ServerActor` or `LocalActor`; what its file keeps is not asked again.
        draws: answers in each state. Those that are equal, or are the expert's action, count once or not at all: ask for more
            than there should be alternatives.
        counts: receives the numbers of answers `without a call` and of those that failed, by reason.
    """

    def __init__(self, answers: Answers, *, draws: int = 6, seed: int = 0, counts: Counter[str] | None = None) -> None:
        self._answers, self._draws, self._seed = answers, draws, seed
        self._counts = Counter() if counts is None else counts

    def prepare(self, trajectories: list[Trajectory]) -> None:
        """Ask about all states of these trajectories at once."""
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
    """The trajectories, of which `proposals` was told, `at_once` together, before it is asked about them one by one.

    Args:
        environment: the class by its path, as in a trajectory's metadata: it is not told of those of other worlds.
    """
    rest = iter(trajectories)
    while group := list(islice(rest, at_once)):
        proposals.prepare([one for one in group if one.metadata.get("environment") == environment])
        yield from group
