"""The policy as its own world model: before it acts, it imagines where its actions lead and takes the best first one.

An agent that kept its world model through reinforcement learning can do this with one set of weights; one that lost it cannot
(measured on the grid with the demo's policies: docs/evaluation.md). The policy samples the imagined episodes itself; it, another
model or the real environment predicts what follows each action.

`LookAhead` answers a `Situation` with an action, as `ServerActor` and `LocalActor` do, and can replace them anywhere. `Sampled`
is the same policy without a world model: one sample, the majority of n samples, or the sample it finds likeliest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from wm_plugin.client.answers import Answer, Conversation
from wm_plugin.data.schema import Action, Record, Trajectory
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


class Decision(Record):
    """What an agent does, and what it imagined and spent on the way."""

    action: Action
    failure: str = ""  # why there is no action: one of `server.KINDS`
    tokens: int = 0  # that the agent generated
    samples: int = 1  # actions or episodes that it drew
    first_tokens: int = 0  # of all its first actions
    imagined: float = 0.0  # the share of the chosen action's episodes in which it imagined success
    any_success: bool = False  # whether it imagined success for any action
    score: float | None = None  # the chosen action's value; None where it acted as without looking ahead
    observation: str | None = None  # what it imagined to follow the chosen action
    troubled: int = 0  # episodes that failed, for example because a world model did not answer


class Decider:
    """A `Model` that decides for many states at once and answers each `Situation` with an action."""

    def __init__(self, imaginer: Imaginer) -> None:
        self.imaginer, self.batched = imaginer, imaginer.batched

    @property
    def at_once(self) -> int:
        """How many states it decides together."""
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
            keep(index, Answer("" if one.failure else self._written(one), failure=one.failure))

    def _written(self, one: Decision) -> str:
        return one.action.to_bytes().decode()


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
            spent = _spent(group)
            acted = [one for one in group if one.first.calls or one.first.text or not one.trouble]
            if not acted:  # the server gave no action at all
                yield Decision(action=Action(), failure=group[0].trouble, **spent)
                continue
            branch, choice = taken(group, self.config)
            if choice is None:
                yield Decision(action=acted[0].first, **spent)
                continue
            chosen = branch.continuation()
            yield Decision(
                action=branch.first,
                first_tokens=sum(one.first_tokens for one in group),
                imagined=choice.imagined,
                any_success=choice.any_success,
                score=choice.score,
                observation=chosen.observation if chosen.turns else None,
                **spent,
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
    """The same policy without a world model: one sample, the most frequent of `samples`, or the likeliest by its own word."""

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
            spent, sound = _spent(group), [one for one in group if not one.trouble]
            if not sound:
                yield Decision(action=Action(), failure=group[0].trouble, **{**spent, "troubled": 0})
                continue
            drawn = [one.continuation() for one in sound]
            place = 0 if self.way == "plain" else (most_frequent if self.way == "majority" else most_likely)(drawn)
            yield Decision(action=sound[place].first, first_tokens=spent["tokens"], **spent)


class Decisions(Decider):
    """A `Decider` that answers with whole decisions, for `Answers` to store; `decision` reads them."""

    def __init__(self, decider: Decider) -> None:
        super().__init__(decider.imaginer)
        self.decider = decider

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.decider.settings, "answers": "decisions"}

    def decide(self, states: Sequence[Trajectory], seeds: Sequence[int]) -> Iterator[Decision]:
        return self.decider.decide(states, seeds)

    def _written(self, one: Decision) -> str:
        return one.to_bytes().decode()


def decision(answer: Answer) -> Decision:
    """Read an answer of `Decisions`."""
    if answer.failure:
        return Decision(action=Action(), failure=answer.failure)
    try:
        return Decision.model_validate(loads(answer.text))
    except ValueError:
        return Decision(action=Action(), failure="malformed")


def _spent(group: Sequence[Branch]) -> dict[str, Any]:
    troubled = sum(bool(one.trouble) for one in group)
    return {"tokens": sum(one.tokens for one in group), "samples": len(group), "troubled": troubled}


def _trajectory(conversation: Conversation) -> Trajectory:
    assert isinstance(conversation, Situation)
    return conversation.trajectory
