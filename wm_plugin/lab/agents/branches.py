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

_PROBES = ("a", "7", "[", "Z")  # begin with different tokens, so that what is before them can be told
_SENTINEL = "wmResult{}Qz7"
_MOST = 1024  # openings and closings that are remembered: names of tools come from policies


class Branch:
    """An imagined episode.

    Attributes:
        state: the real episode so far.
        action: the last one, which nothing has followed yet.
        stopped: by the policy, with an action without a call. `over` is by the world.
        turns: imagined, each with what followed it.
        tokens, first_tokens: that the policy generated for it, and for its first action.
        trouble: why it ended, if something failed.
    """

    def __init__(self, state: Trajectory, seed: int, limit: int) -> None:
        self.state, self.limit, self.draw = state, limit, random.Random(seed)
        self.seed = seed
        self.action = Action()
        self.turns: list[Turn] = []
        self.rewards: list[float] = []
        self.over = self.won = self.stopped = False
        self.logp: float | None = None
        self.tokens, self.first_tokens, self.trouble = 0, 0, ""
        self.pending: list[int] = []  # sampled, and not yet read by the model
        self.first, self.first_ids = Action(), list[int]()  # the tokens are known of a policy in this process

    @property
    def live(self) -> bool:
        return not (self.over or self.stopped or self.trouble) and len(self.turns) < self.limit

    @property
    def trajectory(self) -> Trajectory:
        """The real and the imagined turns."""
        return self.state.model_copy(update={"turns": (*self.state.turns, *self.turns)})

    def act(self, action: Action) -> None:
        if not self.turns:
            self.first, self.first_tokens = action, self.tokens
        self.action = action
        self.stopped = not action.calls  # which ends an episode, and is no end that the world predicts

    def observe(self, observations: Sequence[Observation], *, over: bool, won: bool, reward: float) -> None:
        self.turns.append(Turn(action=self.action, observations=tuple(observations)))
        self.rewards.append(bounded(reward))
        self.over, self.won = over, won

    def fail(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble

    def continuation(self) -> Continuation:
        said = [one.text for one in self.turns[0].observations] if self.turns else []
        return Continuation(
            write_first(self.first),
            len(self.turns),
            self.over,
            self.won,
            tuple(self.rewards),
            "\n".join(said),
            self.logp,
        )


def write_first(action: Action) -> str:
    """An action as a text by which equal ones are told: its calls, without what is thought and said beside them."""
    if not action.calls:
        return f"text: {action.text.strip()}"
    return "\n".join(map(write_call, action.calls))


def branches_of(state: Trajectory, seed: int, count: int, limit: int) -> list[Branch]:
    """So many branches of a state. The first has the same luck, however many there are."""
    return [Branch(state, seed_of(f"{seed}/{number}"), limit) for number in range(count)]


class Imaginer(Protocol):
    """A policy that imagines. One call of `begin` at a time."""

    own: bool  # it can predict results itself
    batched: bool

    @property
    def at_once(self) -> int:
        """Episodes that are imagined together."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Which model it is, as JSON values."""
        ...

    @property
    def sampling(self) -> dict[str, Any]:
        """How its actions are sampled."""
        ...

    def begin(self, branches: Sequence[Branch], *, go_on: bool) -> None:
        """The first action of each branch; those of a state stand together. `go_on`: they will be continued."""
        ...

    def predict(self, branches: Sequence[Branch]) -> list[list[str]]:
        """What the policy says of each call of the branches' actions."""
        ...

    def act(self, branches: Sequence[Branch]) -> None:
        """The next action of branches whose last turn has its observations."""
        ...


class ResultTexts:
    """The template's text around results.

    Args:
        chat: a tokenizer with the template that the policy was trained with.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._openings: dict[tuple[Any, ...], list[int]] = {}
        self._closings: dict[tuple[tuple[str, ...], int], tuple[str, str]] = {}

    @cached_property
    def digest(self) -> str:
        """Of the tokenizer's words and the template: other ones make other prompts."""
        words = sorted(self.chat.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps([self.chat.template, words], default=str).encode()).hexdigest()[:16]

    def block(self, tools: Sequence[str], contents: Sequence[str]) -> list[int]:
        """The tokens of a turn's results, and of the header of the turn after them.

        Raises:
            UserError: the template gives no exact tokens.
        """
        try:
            return self.chat.result_ids(tools, contents)
        except SpanError as error:
            raise UserError(str(error)) from error

    def opening(self, tools: tuple[str, ...], said: Sequence[str]) -> list[int]:
        """The tokens of a turn's results before the content of the next one, which stands after those that are said.

        Raises:
            UserError: the template gives no exact tokens.
        """
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
        """What the template writes after a result: white space, and the text by which one knows that the result has ended."""
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
        """A result without the template's text after it."""
        before, ending = self.closing(tools, index)
        text = text[: text.index(ending)] if ending and ending in text else text
        return text.removesuffix(self.chat.tokenizer.eos_token or "").removesuffix(before)
