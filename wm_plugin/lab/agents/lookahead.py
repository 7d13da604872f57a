"""The policy as its own world model: before it acts, it imagines where its actions lead and takes the best first one.

An agent that kept its world model through reinforcement learning can do this with one set of weights; one that lost it cannot
(measured on the grid with the demo's policies: docs/evaluation.md). The policy samples the imagined episodes itself; it, another
model or the real environment predicts what follows each action.

`LookAhead` answers a `Situation` with an action, as `ServerActor` and `LocalActor` do, and can replace them anywhere. `Sampled`
is the same policy without a world model: one sample, the majority of n samples, or the sample it finds likeliest.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wm_plugin.client.answers import Answer, Conversation
from wm_plugin.data.schema import Action, Trajectory
from wm_plugin.lab.agents.branches import Branch, Imaginer, branches_of
from wm_plugin.lab.agents.imagined_worlds import ImaginedWorld
from wm_plugin.lab.agents.lookahead_values import (
    Choice,
    LookAheadConfig,
    choose,
    most_frequent,
    most_likely,
)
from wm_plugin.untrusted import loads
from wm_plugin.worlds.agents.acting import Situation

Way = Literal["plain", "majority", "best-of-n"]
_FAR = 1 << 30  # turns


@dataclass(frozen=True)
class Decision:
    """What an agent does, and what it imagined and spent on the way.

    Attributes:
        failure: why there is no action (one of `server.KINDS`), or "".
        tokens: tokens that the agent generated.
        samples: actions or episodes that it drew.
        first_tokens: tokens of all its first actions.
        imagined: the share of the chosen action's episodes in which it imagined success.
        any_success: whether it imagined success for any action.
        score: the chosen action's value; None where it acted as without looking ahead.
        observation: what it imagined to follow the chosen action, if anything.
        troubled: episodes that failed, for example because a world model did not answer.
    """

    action: Action
    failure: str = ""
    tokens: int = 0
    samples: int = 1
    first_tokens: int = 0
    imagined: float = 0.0
    any_success: bool = False
    score: float | None = None
    observation: str | None = None
    troubled: int = 0

    def to_json(self) -> str:
        values = {name: value for name, value in vars(self).items() if name != "action"}
        return json.dumps({"action": json.loads(self.action.to_bytes()), **values})

    @classmethod
    def from_json(cls, text: str) -> "Decision":
        """Read a decision. Raises ValueError if the text does not hold one, or is nested too deep."""
        value = loads(text)
        if not isinstance(value, dict):
            raise ValueError("no decision")
        try:
            return cls(**{**value, "action": Action.model_validate(value.get("action"))})
        except TypeError as error:
            raise ValueError(str(error)) from None


class Decider:
    """A `Model` that decides for many states at once and answers each `Situation` with an action.

    Attributes:
        at_once: how many states it decides together.
    """

    def __init__(self, imaginer: Imaginer) -> None:
        self.imaginer, self.batched = imaginer, imaginer.batched

    @property
    def at_once(self) -> int:
        return self.imaginer.at_once

    @property
    def settings(self) -> dict[str, Any]:
        return self.imaginer.settings

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        """Yield a decision for each state, in order."""
        for start in range(0, len(states), self.at_once):
            chunk = slice(start, start + self.at_once)
            yield from self._decide(states[chunk], seeds[chunk])

    def _decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        raise NotImplementedError

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        for index, one in enumerate(self.decide([_trajectory(one) for one in conversations], seeds)):
            text = "" if one.failure else one.action.to_bytes().decode()
            keep(index, Answer(text, failure=one.failure))


class LookAhead(Decider):
    """A policy that looks ahead.

    Args:
        world: predicts what follows an imagined action.
        left: returns how many turns an episode has left, or None if unknown; imagined episodes go no further.
    """

    def __init__(
        self,
        imaginer: Imaginer,
        world: ImaginedWorld,
        config: LookAheadConfig,
        *,
        left: Callable[[Trajectory], int | None] | None = None,
    ) -> None:
        config.check_marks()
        super().__init__(imaginer)
        self.world, self.config, self._left = world, config, left

    @property
    def at_once(self) -> int:
        return max(1, self.imaginer.at_once // self.config.continuations)

    @property
    def settings(self) -> dict[str, Any]:
        config = self.config.model_dump(mode="json")
        return {**self.imaginer.settings, "agent": "look-ahead", **config, **self.world.settings}

    def _decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        groups = self.imagine(states, seeds)
        for group in groups:
            sound = [one for one in group if not one.trouble]
            tokens, troubled = sum(one.tokens for one in group), len(group) - len(sound)
            acted = [one for one in group if one.first.calls or one.first.text or not one.trouble]
            if not acted:  # the server gave no action at all
                kind = group[0].trouble
                yield Decision(Action(), failure=kind, tokens=tokens, samples=len(group), troubled=troubled)
                continue
            branch, choice = taken(group, self.config)
            if choice is None:
                yield Decision(acted[0].first, tokens=tokens, samples=len(group), troubled=troubled)
                continue
            chosen = branch.continuation()
            yield Decision(
                branch.first,
                tokens=tokens,
                samples=len(group),
                first_tokens=sum(one.first_tokens for one in group),
                imagined=choice.imagined,
                any_success=choice.any_success,
                score=choice.score,
                observation=chosen.observation if chosen.turns else None,
                troubled=troubled,
            )

    def imagine(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> list[list[Branch]]:
        """Return the imagined episodes of each state, played to their end or to the depth."""
        groups = [
            branches_of(state, seed, self.config.continuations, min(self.config.depth, self._turns_left(state)))
            for state, seed in zip(states, seeds, strict=True)
        ]
        branches = [branch for group in groups for branch in group]
        self.imaginer.begin(branches, go_on=True)
        self.world.begin(branches)
        live = [branch for branch in branches if branch.live]
        while live:
            self.world.observe(live)
            live = [branch for branch in live if branch.live]
            if live:
                self.imaginer.act(live)
                live = [branch for branch in live if branch.live]
        return groups

    def _turns_left(self, state: Trajectory) -> int:
        left = None if self._left is None else self._left(state)
        return _FAR if left is None else max(1, left)


def taken(group: Sequence[Branch], config: LookAheadConfig) -> tuple[Branch, Choice | None]:
    """Return the episode whose first action the policy takes; with no choice if every episode failed."""
    sound = [one for one in group if not one.trouble]
    if not sound:  # nothing is known about the future: the policy acts as without looking ahead
        return group[0], None
    own = sound.index(group[0]) if group[0] in sound else 0
    choice = choose([one.continuation() for one in sound], config, own=own)
    return sound[choice.place], choice


class Sampled(Decider):
    """The same policy without a world model.

    Args:
        way: plain (one sample), majority (the most frequent of `samples`), or best-of-n (the likeliest by its own
            log-probability).
    """

    def __init__(self, way: Way, imaginer: Imaginer, samples: int = 1) -> None:
        super().__init__(imaginer)
        self.way, self.samples = way, 1 if way == "plain" else samples

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.imaginer.settings, **self.imaginer.sampling, "agent": self.way, "samples": self.samples}

    def _decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        groups = [branches_of(*pair, self.samples, 1) for pair in zip(states, seeds, strict=True)]
        self.imaginer.begin([branch for group in groups for branch in group], go_on=False)
        for group in groups:
            tokens = sum(one.tokens for one in group)
            sound = [one for one in group if not one.trouble]
            if not sound:
                yield Decision(Action(), failure=group[0].trouble, tokens=tokens, samples=len(group))
                continue
            drawn = [one.continuation() for one in sound]
            place = 0 if self.way == "plain" else (most_frequent if self.way == "majority" else most_likely)(drawn)
            yield Decision(
                sound[place].first,
                tokens=tokens,
                samples=len(group),
                first_tokens=tokens,
                troubled=len(group) - len(sound),
            )


class Decisions:
    """A `Model` whose answers are a `Decider`'s whole decisions, for `Answers` to store; `decision` reads them."""

    def __init__(self, decider: Decider) -> None:
        self.decider, self.batched = decider, decider.batched

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.decider.settings, "answers": "decisions"}

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        for index, one in enumerate(self.decider.decide([_trajectory(one) for one in conversations], seeds)):
            keep(index, Answer("" if one.failure else one.to_json(), failure=one.failure))


def decision(answer: Answer) -> Decision:
    """Read an answer of `Decisions`."""
    if answer.failure:
        return Decision(Action(), failure=answer.failure)
    try:
        return Decision.from_json(answer.text)
    except ValueError:
        return Decision(Action(), failure="malformed")


def _trajectory(conversation: Conversation) -> Trajectory:
    assert isinstance(conversation, Situation)
    return conversation.trajectory
