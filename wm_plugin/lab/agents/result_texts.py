"""Where a result begins and ends in a rollout, by the chat template: for a model that is to write one."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import Chat
from wm_plugin.tokens.spans import SpanError

_PROBES = ("a", "7", "[", "Z")  # begin with different tokens, so that what is before them can be told
_SENTINEL = "wmResult{}Qz7"
_MOST = 1024  # openings and closings that are remembered: names of tools come from policies


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
