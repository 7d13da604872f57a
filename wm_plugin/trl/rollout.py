"""What TRL knows of a batch of rollouts, turned into spans: which tokens a tool wrote, which the template, and which call failed.

`tool_mask` is 0 over whole blocks of tool results, scaffold included. The k-th block of a completion is the k-th group of
consecutive tool messages, each of which names its tool; parallel calls share a block. The message before a group has its calls.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import trl
from packaging.version import Version

from wm_plugin.objectives.information import category
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import (
    SPAN_FIELD,
    ContentLocator,
    Origin,
    Span,
    SpanError,
    ToolBlock,
    block_spans,
    given_spans,
    texts_of,
    zero_runs,
)
from wm_plugin.trajectories.turn_texts import categories
from wm_plugin.trl.support import CUT_RESULTS_DROPPED

Decode = Callable[[list[int]], str]


class CallRecorder:
    """Remembers which tool calls raised.

    TRL turns an exception into the text {"error": …}; a tool may return such a text too, and only the first is the host's
    failure. The recorder tells them apart at the call.
    """

    def __init__(self) -> None:
        self._raised: Counter[tuple[int, str, str]] = Counter()  # (row, tool, text) -> times
        self._known: dict[int, set[str]] = {}

    def wrap(self, dicts: Sequence[Mapping[str, Callable]]) -> list[dict[str, Callable]]:
        """The host's {name: tool} of each row, with every tool watched."""
        wrapped = []
        for row, tools in enumerate(dicts):
            self._known.setdefault(row, set()).update(tools)
            wrapped.append({name: self._watch(row, name, tool) for name, tool in tools.items()})
        return wrapped

    def failed(self, row: int, message: Message) -> bool:
        """Whether the host made this tool message up. To be asked once a message, in order."""
        key = (row, message["name"], str(message["content"]))
        if self._raised[key]:
            self._raised[key] -= 1
            return True
        return row in self._known and message["name"] not in self._known[row]

    def _watch(self, row: int, name: str, tool: Callable) -> Callable:
        def note(error: Exception) -> None:
            self._raised[row, name, str({"error": str(error)})] += 1

        async def watched(result: Any) -> Any:
            try:
                return await result
            except Exception as error:
                note(error)
                raise

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = tool(*args, **kwargs)
            except Exception as error:
                note(error)
                raise
            return watched(result) if asyncio.iscoroutine(result) else result

        return call


def called(completion: Any) -> list[str]:
    """The names of a completion's tool calls, in their order; of a text there are none."""
    messages = completion if isinstance(completion, list) else []
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    return [str(call["function"]["name"]) for call in calls]


class Rollouts:
    """One generation batch, as the host's hooks show it."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size  # completions of one prompt
        self.calls = CallRecorder()
        self.completions: list[Any] = []  # messages of each completion, tool messages included
        self.completion_ids: list[list[int]] = []
        self.zero_variance: list[bool] = []  # whether the rewards of the completion's group are all equal

    def spans(
        self,
        tool_masks: Mapping[int, torch.Tensor],
        columns: Sequence[Mapping[str, Any]],
        locator: ContentLocator,
        full_block: Callable[[list[Message]], list[int]],
        decode: Decode | None = None,
    ) -> dict[int, list[Origin]]:
        """For each completion in `tool_masks`, the environment's spans in it.

        Args:
            tool_masks: by the completion's row, (T,) without padding, 1 = sampled by the policy.
            columns: every completion's extra columns; `env_spans` among them wins over tool messages.
            full_block: tool messages -> the tokens that the host would append for them.
            decode: token ids -> text, without special tokens. With it each span gets the category of its turn.
        """
        found: dict[int, list[Origin]] = {row: [] for row in tool_masks}
        blocks: list[ToolBlock] = []
        places: list[
            tuple[int, int, Message | None, list[Message]]
        ] = []  # (row, first token, calls, results) of each block
        for row, tool_mask in tool_masks.items():
            if columns[row].get(SPAN_FIELD) is not None:
                found[row] = self._by_tokens(row, given_spans(columns[row][SPAN_FIELD], tool_mask), tool_mask, decode)
                continue
            runs, groups = zero_runs(tool_mask), _tool_groups(self.completions[row])
            if not groups:  # a rollout_func that gives env_mask alone: whole runs, of unknown origin
                spans = [Span(start, end, "environment", None, True) for start, end in runs]
                found[row] = self._by_tokens(row, spans, tool_mask, decode)
                continue
            if len(groups) == len(runs) + 1 and Version(trl.__version__) < CUT_RESULTS_DROPPED:
                groups.pop()  # the last result was cut away whole
            if len(runs) != len(groups):
                raise SpanError(
                    f"a completion has {len(runs)} blocks of environment tokens but {len(groups)} groups of tool "
                    f"messages; a rollout_func must return {SPAN_FIELD!r} beside env_mask"
                )
            for (start, end), (calls, group) in zip(runs, groups, strict=True):
                cut = end == len(tool_mask)  # only at the end of a completion can a block be cut
                blocks.append(
                    ToolBlock(
                        tools=tuple(message["name"] for message in group),
                        contents=tuple(_text(message) for message in group),
                        ids=list(self.completion_ids[row][start:end]),
                        full_ids=full_block(group) if cut else None,
                    )
                )
                places.append((row, start, calls, group))
        for block, ranges, (row, start, calls, group) in zip(blocks, locator.locate(blocks), places, strict=True):
            failed = [self.calls.failed(row, message) for message in group]
            kinds = categories(calls or {}, group) if decode else [None] * len(group)
            found[row] += [
                Origin(span, group[index], failed[index], kinds[index])
                for span, index in block_spans(block, ranges, start)
            ]
        return found

    def _by_tokens(self, row: int, spans: list[Span], tool_mask: torch.Tensor, decode: Decode | None) -> list[Origin]:
        """Spans of which nothing but the tokens is known."""
        if decode is None:
            return [Origin(span) for span in spans]
        texts = texts_of(spans, self.completion_ids[row], tool_mask, decode)
        return [Origin(span, category=category(*pair)) for span, pair in zip(spans, texts, strict=True)]


def _tool_groups(completion: Any) -> list[tuple[Message | None, list[Message]]]:
    """Consecutive tool messages together, each group with the message before it. A completion that is plain text has none."""
    groups: list[tuple[Message | None, list[Message]]] = []
    previous: Message | None = None
    for message in completion if isinstance(completion, list) else []:
        if message["role"] == "tool":
            if previous is not None and previous["role"] == "tool":
                groups[-1][1].append(message)
            else:
                groups.append((previous, [message]))
        previous = message
    return groups


def _text(message: Message) -> str:
    content = message["content"]
    if not isinstance(content, str):
        raise SpanError(
            f"tool {message['name']!r} returned content blocks, not text; the world-model term covers text only: use coeff 0"
        )
    return content
