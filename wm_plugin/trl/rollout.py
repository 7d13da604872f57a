"""What TRL knows of a batch of rollouts, turned into spans: which tokens a tool wrote, which the template, and which call failed.

`tool_mask` is 0 over whole blocks of tool results, scaffold included. The k-th block of a completion is the k-th group of
consecutive tool messages, each of which names its tool; parallel calls share a block.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packaging.version import Version

import trl
from wm_plugin.errors import UserError
from wm_plugin.objectives.spans import ContentLocator, Span, SpanError, ToolBlock, block_spans, zero_runs
from wm_plugin.trl.support import CUT_RESULTS_DROPPED

SPAN_FIELD = "env_spans"  # what a rollout_func returns beside TRL's env_mask

Message = Mapping[str, Any]


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


class Rollouts:
    """One generation batch, as the host's hooks show it."""

    def __init__(self) -> None:
        self.calls = CallRecorder()
        self.completions: list[Any] = []  # messages of each completion, tool messages included
        self.completion_ids: list[list[int]] = []
        self.zero_variance: list[bool] = []  # whether the rewards of the completion's group are all equal

    def spans(
        self,
        row: int,
        tool_mask: Sequence[int],
        columns: Mapping[str, Any],
        locator: ContentLocator,
        full_block: Callable[[list[Message]], list[int]],
    ) -> list[tuple[Span, Message | None, bool]]:
        """The environment's spans in a completion, each with its message and whether the host made that message up.

        Args:
            tool_mask: (T,) of the completion without its padding, 1 = sampled by the policy.
            columns: the completion's extra columns; `env_spans` among them wins over tool messages.
            full_block: tool messages -> the tokens that the host would append for them.
        """
        runs = zero_runs(tool_mask)
        if columns.get(SPAN_FIELD) is not None:
            return [(span, None, False) for span in _given_spans(columns[SPAN_FIELD], tool_mask)]
        completion = self.completions[row]
        groups = _tool_groups(completion) if isinstance(completion, list) else []
        if not groups:  # a rollout_func that gives env_mask alone: whole runs, of unknown origin
            return [(Span(start, end, "environment", None, True), None, False) for start, end in runs]
        if len(groups) == len(runs) + 1 and Version(trl.__version__) < CUT_RESULTS_DROPPED:
            groups.pop()  # the last result was cut away whole
        if len(runs) != len(groups):
            raise SpanError(
                f"a completion has {len(runs)} blocks of environment tokens but {len(groups)} groups of tool messages; "
                f"a rollout_func must return {SPAN_FIELD!r} beside env_mask"
            )
        blocks = []
        for (start, end), group in zip(runs, groups, strict=True):
            ids = list(self.completion_ids[row][start:end])
            at_the_end = end == len(tool_mask)  # only there can a block be cut
            blocks.append(
                ToolBlock(
                    tools=tuple(message["name"] for message in group),
                    contents=tuple(_text(message) for message in group),
                    ids=ids,
                    full_ids=full_block(group) if at_the_end else None,
                )
            )
        spans: list[tuple[Span, Message | None, bool]] = []
        for block, ranges, group, (start, _) in zip(blocks, locator.locate(blocks), groups, runs, strict=True):
            failed = [self.calls.failed(row, message) for message in group]
            spans += [(span, group[index], failed[index]) for span, index in block_spans(block, ranges, start)]
        return spans


def _tool_groups(messages: list[Message]) -> list[list[Message]]:
    """Consecutive tool messages, together."""
    groups: list[list[Message]] = []
    previous = None
    for message in messages:
        if message["role"] == "tool":
            if previous == "tool":
                groups[-1].append(message)
            else:
                groups.append([message])
        previous = message["role"]
    return groups


def _text(message: Message) -> str:
    content = message["content"]
    if not isinstance(content, str):
        raise SpanError(
            f"tool {message['name']!r} returned content blocks, not text; the world-model term covers text only: use coeff 0"
        )
    return content


def _given_spans(values: Any, tool_mask: Sequence[int]) -> list[Span]:
    """`env_spans` of a rollout_func: (start, end, role, tool, content) each, clipped where the completion was."""
    spans: list[Span] = []
    length = len(tool_mask)
    for value in values:
        try:
            span = Span(**value) if isinstance(value, Mapping) else Span(*value)
            start, end = int(span.start), int(span.end)
        except (TypeError, ValueError):
            raise UserError(
                f"{SPAN_FIELD}: {value!r} is not a span; write (start, end, role, tool or None, content: bool)"
            ) from None
        if not 0 <= start <= end:
            raise UserError(f"{SPAN_FIELD}: {value!r} ends before it starts, or starts below 0")
        clipped = span._replace(start=min(start, length), end=min(end, length))
        if any(tool_mask[clipped.start : clipped.end]):
            raise UserError(f"{SPAN_FIELD}: {value!r} covers tokens that env_mask says the policy sampled")
        spans.append(clipped)
    spans.sort()
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise UserError(f"{SPAN_FIELD}: {tuple(before)} and {tuple(after)} overlap")
    return [span for span in spans if span.end > span.start]
