"""Agents that play the same tasks in the real world and in a world model, many episodes at once.

A model's action depends on what it sees, its settings and a seed of its task and turn. As long as both worlds say the same, it
acts the same in both. Its actions are kept in a file (`samples.answers`), so that a killed run asks nothing twice.

A scripted agent looks into its environment, and a world model has nothing to look into: there it takes the actions of its real
episode of the same task, one after the other, whatever it observes.

An agent plays tasks in the real world (`play`), and takes its turns in a world model (`act`, after `play` of the same tasks). It
is a context manager, which holds what it needs meanwhile: its file of actions, or processes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import wm_plugin.worlds.agents.rollout as rollout
from wm_plugin.client.answers import Answer, Answers, Conversation, Model
from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Failure, Server
from wm_plugin.data.chat import chat
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.runtime.workers import Lost
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import loads
from wm_plugin.worlds.agents.players import MAX_TURNS, Act, Player, Task, rounds
from wm_plugin.worlds.agents.policies import LocalPolicy, ServerPolicy, sampling_of
from wm_plugin.worlds.worlds import World


class ScriptedAgent:
    """An agent whose actions in the real world are all that can be had of it, such as a `ScriptedPlayer`."""

    def __init__(self, name: str, player: Player) -> None:
        self.name, self._player = name, player
        self._plans: dict[int, list[Action]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return self._player.settings

    def play(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        results = self._player(tasks)
        for (number, _), result in zip(tasks, results, strict=True):
            if isinstance(result, Trajectory):
                self._plans[number] = [turn.action for turn in result.turns]
        return results

    def act(self, states: Mapping[int, Trajectory]) -> Mapping[int, Action | Lost | None]:
        """Take one turn of several episodes, by the numbers of their tasks. None ends one; `Lost` says why there is no action."""
        return {number: self._next(number, len(trajectory.turns)) for number, trajectory in states.items()}

    def _next(self, number: int, turn: int) -> Action | Lost | None:
        if number not in self._plans:
            return Lost("no real episode", "its real episode, whose actions it takes, was lost")
        plan = self._plans[number]
        return plan[turn] if turn < len(plan) else None

    def __enter__(self) -> "ScriptedAgent":
        return self

    def __exit__(self, *error: object) -> None:
        self._player.close()


class ModelAgent:
    """A model that acts by tool calls.

    Args:
        model: `ServerActor` or `LocalActor`.
        path: keeps its actions; None keeps nothing.
        at_once: episodes that play together in the real world, each in an environment of its own.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        world: World,
        path: str | Path | None = None,
        *,
        seed: int = 0,
        max_turns: int = MAX_TURNS,
        host: rollout.Host = "trl",
        at_once: int = 32,
    ) -> None:
        self.name, self.answers = name, Answers(model, path)
        self._world, self._seed, self._max_turns, self._host, self._at_once = world, seed, max_turns, host, at_once

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.answers.settings, "seed": self._seed, "max_turns": self._max_turns, "host": self._host}

    def play(self, tasks: Sequence[Task]) -> list[Trajectory | Lost]:
        results: list[Trajectory | Lost] = []
        act: Act = self.act
        for start in range(0, len(tasks), self._at_once):
            group = tasks[start : start + self._at_once]
            results += rounds(self._world, group, act, max_turns=self._max_turns, host=self._host)
        return results

    def act(self, states: Mapping[int, Trajectory]) -> Mapping[int, Action | Lost | None]:
        seeds = [seed_of(f"{self._seed}/{number}/{len(trajectory.turns)}") for number, trajectory in states.items()]
        answers = self.answers([Situation(trajectory) for trajectory in states.values()], seeds=seeds)
        return dict(zip(states, map(action_of_answer, answers), strict=True))

    def __enter__(self) -> "ModelAgent":
        self.answers.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.answers.__exit__(*error)


Agent = ScriptedAgent | ModelAgent


class Situation(list[Message]):
    """What an agent sees before its turn, as a conversation, and the trajectory that it is made of."""

    def __init__(self, trajectory: Trajectory) -> None:
        tools = [
            {"role": "tools", "content": list(trajectory.context.action_space)}
        ]  # so that other tools are another question
        super().__init__([*tools, *chat(trajectory.context, trajectory.turns)])
        self.trajectory = trajectory


class ServerActor:
    """A policy behind a chat server, as a `Model` that answers a `Situation` by an action in JSON."""

    batched = False

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def settings(self) -> dict[str, Any]:
        return {"agent": self.server.model, **sampling_of(self.server)}

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        def done(index: int, found: Action | Failure) -> None:
            keep(index, Answer("", failure=found.kind) if isinstance(found, Failure) else _answer(found))

        ServerPolicy.ask(self.server, map(_trajectory, conversations), map(str, seeds), done)


class LocalActor:
    """A policy in this process, as a `Model` that answers a `Situation` by an action in JSON."""

    batched = True

    def __init__(self, predictor: LocalPredictor) -> None:
        self._predictor, self._policy = predictor, LocalPolicy(predictor)

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._predictor.settings, "agent": "model", "batch_size": self._predictor.batch_size}

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        size = self._predictor.batch_size
        for start in range(0, len(conversations), size):
            batch = [_trajectory(conversation) for conversation in conversations[start : start + size]]
            for place, action in enumerate(self._policy(batch, seeds[start])):
                keep(start + place, _answer(action))


def _trajectory(conversation: Conversation) -> Trajectory:
    assert isinstance(conversation, Situation)
    return conversation.trajectory


def _answer(action: Action) -> Answer:
    return Answer(action.to_bytes().decode())


def action_of_answer(answer: Answer) -> Action | Lost:
    """Return the action that a `ServerActor` or `LocalActor` answered, or why there is none."""
    if answer.failure:
        return Lost(answer.failure, "the agent's server gave no answer")
    try:
        return Action.model_validate(loads(answer.text))
    except ValueError:  # more values, or nested deeper, than is ever read
        return Lost("malformed", "the agent's action is out of bounds")
