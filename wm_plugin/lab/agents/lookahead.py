"""The policy as its own world model: before it acts, it imagines where its actions lead, and takes the best first one.

An agent that kept its world model through reinforcement learning can do this with one set of weights; one that lost it cannot,
which is what makes the objective worth its price (measured on the grid with the demo's policies: docs/evaluation.md). Imagined
episodes are the policy's own samples, and what follows them is its own prediction, another model's, or the real environment's.

`LookAhead` is a `samples.answers.Model` that answers a `Situation` by an action, as `ServerActor` and `LocalActor` do, so that
everything that takes those takes it. `Sampled` are the same policy without a world model: it acts as it would, by the majority
of n samples, or by the one that it finds likeliest.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

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
    """What an agent does, and what it imagined and spent for it.

    Attributes:
        failure: why there is no action: one of `server.KINDS`; "" if there is one.
        tokens: that it generated.
        samples: actions or episodes that it drew.
        first_tokens: of its own first actions, all together.
        imagined: the share of the chosen action's episodes that were imagined to be won.
        any_success: one of any action was.
        score: of the chosen action; None where it acted as it would.
        observation: what it imagined to follow, in one of the chosen action's episodes; None if nothing.
        troubled: episodes that failed, such as those of a world model without an answer.
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
        rest = {name: value for name, value in asdict(replace(self, action=Action())).items() if name != "action"}
        return json.dumps({"action": json.loads(self.action.to_bytes()), **rest})

    @classmethod
    def from_json(cls, text: str) -> "Decision":
        """Raises ValueError where a text is none, or is nested deeper than is ever read."""
        value = loads(text)
        if not isinstance(value, dict):
            raise ValueError("no decision")
        try:
            return cls(**{**value, "action": Action.model_validate(value.get("action"))})
        except TypeError as error:
            raise ValueError(str(error)) from None


class Decider(Protocol):
    """An agent that decides for many states at once."""

    batched: bool

    @property
    def at_once(self) -> int:
        """States that are decided together."""
        ...

    @property
    def settings(self) -> dict[str, Any]: ...

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]: ...


class _Actor:
    """A `Decider` as a `Model` that answers a `Situation` by its action."""

    def __init__(self, imaginer: Imaginer) -> None:
        self.imaginer, self.batched = imaginer, imaginer.batched

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        raise NotImplementedError

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        for index, one in enumerate(self.decide([_trajectory(one) for one in conversations], seeds)):
            text = "" if one.failure else one.action.to_bytes().decode()
            keep(index, Answer(text, failure=one.failure))


class LookAhead(_Actor):
    """A policy that looks ahead.

    Args:
        world: who says what follows an imagined action.
        left: how many turns an episode has left, as far as that is known; none is imagined beyond.
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
        return {**self.imaginer.settings, "agent": "look-ahead", **self.config.as_dict(), **self.world.settings}

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        """A decision for each state, in order; all states of a batch imagine together."""
        for start in range(0, len(states), self.at_once):
            chunk = slice(start, start + self.at_once)
            yield from self._decide(states[chunk], seeds[chunk])

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
        """The imagined episodes of each state, to their ends or as far as is looked."""
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
    """The episode of a state's whose first action goes out. Without any that did not fail it is the first one, and no choice."""
    sound = [one for one in group if not one.trouble]
    if not sound:  # nothing can be said of what comes: the policy acts as it would
        return group[0], None
    own = sound.index(group[0]) if group[0] in sound else 0
    choice = choose([one.continuation() for one in sound], config, own=own)
    return sound[choice.place], choice


class Sampled(_Actor):
    """The same policy without a world model.

    Args:
        way: plain (one sample), majority (the most frequent of `samples`), or best-of-n (the likeliest by its own
            log-probability).
    """

    def __init__(self, way: Way, imaginer: Imaginer, samples: int = 1) -> None:
        super().__init__(imaginer)
        self.way, self.samples = way, 1 if way == "plain" else samples

    @property
    def at_once(self) -> int:
        return self.imaginer.at_once

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.imaginer.settings, **self.imaginer.sampling, "agent": self.way, "samples": self.samples}

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        """A decision for each state, in order."""
        for start in range(0, len(states), self.at_once):
            chunk = slice(start, start + self.at_once)
            groups = [branches_of(*pair, self.samples, 1) for pair in zip(states[chunk], seeds[chunk], strict=True)]
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
    """A `Decider` as a `Model` whose answers are whole decisions, for `Answers` to keep: see `decision`."""

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
    """What a model of `Decisions` answered."""
    if answer.failure:
        return Decision(Action(), failure=answer.failure)
    try:
        return Decision.from_json(answer.text)
    except ValueError:  # an action with more values, or nested deeper, than is ever read
        return Decision(Action(), failure="malformed")


def _trajectory(conversation: Conversation) -> Trajectory:
    assert isinstance(conversation, Situation)
    return conversation.trajectory
