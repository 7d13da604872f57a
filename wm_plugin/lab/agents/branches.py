"""Imagined episodes, and the chat template's text around the results in them.

The policy reads an imagined episode as its trainer writes a rollout: the prompt, a turn, and the results' tokens by the chat
template. So it is asked for predictions in the form in which the objective trained it to read results.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from wm_plugin.client.predict import seed_of
from wm_plugin.data.render import write_call
from wm_plugin.data.schema import Action, Observation, Trajectory, Turn
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.lookahead_values import Continuation
from wm_plugin.tokens.chat import Chat
from wm_plugin.tokens.spans import SpanError
from wm_plugin.worlds.agents.outcomes import bounded

_PROBES = ("a", "7", "[", "Z")  # start with different tokens, so that the common prefix is the opening
_SENTINEL = "wmResult{}Qz7"
_MOST = 1024  # cached openings and closings: policies can make up any number of tool names


class Branch:
    """An imagined episode that goes on from `state`, the real episode so far, for at most `limit` turns."""

    def __init__(self, state: Trajectory, seed: int, limit: int) -> None:
        self.state, self.seed, self.limit, self.draw = state, seed, limit, random.Random(seed)
        self.action = Action()  # the latest one, without its results yet
        self.turns: list[Turn] = []  # with their results
        self.rewards: list[float] = []
        self.over = self.won = False  # by the world's word
        self.stopped = False  # the policy ended it with an action without a call
        self.logp: float | None = None
        self.tokens = self.first_tokens = 0  # that the policy generated: for the episode, for its first action
        self.trouble = ""  # why it failed
        self.pending: list[int] = []  # sampled but not yet fed to the model
        self.first, self.first_ids = Action(), list[int]()  # first_ids: only from a policy in this process

    @property
    def live(self) -> bool:
        return not (self.over or self.stopped or self.trouble) and len(self.turns) < self.limit

    @property
    def trajectory(self) -> Trajectory:
        """The real turns, then the imagined ones."""
        return self.state.model_copy(update={"turns": (*self.state.turns, *self.turns)})

    def act(self, action: Action) -> None:
        if not self.turns:
            self.first, self.first_tokens = action, self.tokens
        self.action = action
        self.stopped = not action.calls  # ends the episode, but the world did not

    def observe(self, observations: Sequence[Observation], *, over: bool, won: bool, reward: float) -> None:
        self.turns.append(Turn(action=self.action, observations=tuple(observations)))
        self.rewards.append(bounded(reward))
        self.over, self.won = over, won

    def fail(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble

    def continuation(self) -> Continuation:
        calls = "\n".join(map(write_call, self.first.calls))
        said = "\n".join(one.text for turn in self.turns[:1] for one in turn.observations)
        return Continuation(
            first=calls or f"text: {self.first.text.strip()}",
            turns=len(self.turns),
            over=self.over,
            won=self.won,
            rewards=tuple(self.rewards),
            observation=said,
            logp=self.logp,
        )


def branches_of(state: Trajectory, seed: int, count: int, limit: int) -> list[Branch]:
    """Return `count` branches of a state. The first one's seed does not depend on `count`."""
    return [Branch(state, seed_of(f"{seed}/{number}"), limit) for number in range(count)]


class Imaginer(Protocol):
    """A policy that imagines. It works on the branches of its latest `begin` only."""

    batched: bool

    @property
    def at_once(self) -> int:
        """How many episodes it imagines together."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Which model it is, as JSON values."""
        ...

    @property
    def sampling(self) -> dict[str, Any]:
        """How it samples actions, as JSON values."""
        ...

    def begin(self, branches: Sequence[Branch], *, go_on: bool) -> None:
        """Sample each branch's first action; a state's branches are neighbours. `go_on`: the branches will continue."""
        ...

    def predict(self, branches: Sequence[Branch]) -> list[list[str]]:
        """Predict the result of each call in the branches' actions."""
        ...

    def act(self, branches: Sequence[Branch]) -> None:
        """Sample the next action of branches whose latest turn has its results."""
        ...


class ResultTexts:
    """Where results begin and end in a rollout, by the chat template that the policy was trained with."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._openings: dict[tuple[Any, ...], list[int]] = {}
        self._closings: dict[tuple[tuple[str, ...], int], tuple[str, str]] = {}

    @cached_property
    def digest(self) -> str:
        """A digest of what determines the prompts: the tokenizer's vocabulary and the template."""
        words = sorted(self.chat.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps([self.chat.template, words], default=str).encode()).hexdigest()[:16]

    def block(self, tools: Sequence[str], contents: Sequence[str]) -> list[int]:
        """Return the tokens of a turn's results and of the next turn's header; raise UserError if they are not exact."""
        try:
            return self.chat.result_ids(tools, contents)
        except SpanError as error:
            raise UserError(str(error)) from error

    def opening(self, tools: tuple[str, ...], said: Sequence[str]) -> list[int]:
        """Return the tokens of a turn's results up to the content of the one after those in `said`."""
        key = (tools, *said)
        if key not in self._openings:
            if len(self._openings) >= _MOST:
                self._openings.clear()
            after = len(tools) - len(said) - 1
            blocks = [self.block(tools, [*said, probe, *["0"] * after]) for probe in _PROBES]
            shortest = min(map(len, blocks))
            common = next((n for n in range(shortest) if len({block[n] for block in blocks}) > 1), shortest)
            self._openings[key] = blocks[0][:common]
        return self._openings[key]

    def closing(self, tools: tuple[str, ...], index: int) -> tuple[str, str]:
        """Return the white space that the template writes after a result, and the text that marks its end."""
        if (tools, index) not in self._closings:
            if len(self._closings) >= _MOST:
                self._closings.clear()
            marks = [_SENTINEL.format(number) for number in range(len(tools))]
            text = self.chat.render_results(tools, marks)
            after = text[text.rindex(marks[index]) + len(marks[index]) :]
            after = after[: after.index(marks[index + 1])] if index + 1 < len(tools) else after
            ending = after.lstrip()
            tagged = ending.startswith("<") and ">" in ending
            ending = ending[: ending.index(">") + 1] if tagged else ending.split("\n")[0]
            self._closings[tools, index] = (after[: len(after) - len(after.lstrip())], ending or after)
        return self._closings[tools, index]

    def content(self, text: str, tools: tuple[str, ...], index: int) -> str:
        """Return a result without the template's text after it."""
        before, ending = self.closing(tools, index)
        text = text[: text.index(ending)] if ending and ending in text else text
        return text.removesuffix(self.chat.tokenizer.eos_token or "").removesuffix(before)
