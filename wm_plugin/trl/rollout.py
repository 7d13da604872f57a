"""What TRL knows of a batch of rollouts, turned into spans: which tokens a tool wrote, which the template, and which call failed.

`tool_mask` is 0 over whole blocks of tool results, scaffold included. The k-th block of a completion is the k-th group of
consecutive tool messages, each of which names its tool; parallel calls share a block. The message before a group has its calls.
"""

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import takewhile
from typing import Any

from wm_plugin.data.turn_texts import categories
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.world import tool_methods
from wm_plugin.objectives.weigh import origins_of_tokens
from wm_plugin.tokens.message import Message, as_text
from wm_plugin.tokens.spans import (
    SPAN_FIELD,
    ContentLocator,
    Decode,
    Ending,
    Mask,
    Origin,
    Span,
    SpanError,
    ToolBlock,
    block_spans,
    ending,
    read_spans,
    zero_runs,
)
from wm_plugin.trl import _compat
from wm_plugin.untrusted import DEEPEST, deeper, encodable


@contextmanager
def parsing_within_bounds(processor: Any, predictions: str | None = None) -> Iterator[None]:
    """Turns that the tokenizer's parser fails on, or that nest deeper than our records, are a ValueError of `parse_response`.

    TRL takes such a turn as plain text. Other errors would end the run, and a policy can write a turn that causes one.

    Args:
        predictions: the tag whose content is left out before calls are parsed, and is put at the end of the message's text.
    """
    tokenizer = getattr(processor, "tokenizer", processor)  # a processor's, or the tokenizer itself
    parse = getattr(tokenizer, "parse_response", None)  # transformers 5; TRL parses nothing before it
    if parse is None:
        yield
        return

    def bounded(ids: Any, *args: Any, **kwargs: Any) -> Any:
        predicted = ""
        if predictions is not None:
            from wm_plugin.hosting.predictions import acting

            answer = acting(tokenizer.decode(ids), predictions)
            predicted = answer.predicted
            if predicted:
                # of no tokens at all it would make a list of no messages
                ids = tokenizer.encode(answer.acting or tokenizer.eos_token, add_special_tokens=False)
        try:
            message = parse(ids, *args, **kwargs)
        except (RecursionError, LookupError, AttributeError) as error:
            raise ValueError(f"the turn does not parse: {type(error).__name__}") from None
        if deeper(message):  # what copies or renders the message afterwards is recursive, too
            raise ValueError(f"the turn nests more than {DEEPEST} levels deep")
        if predicted and isinstance(message, dict):
            text = (message.get("content") or "").removesuffix(tokenizer.eos_token or "")
            message["content"] = f"{text}{predicted}"
        return encodable(message)

    tokenizer.parse_response = bounded
    try:
        yield
    finally:
        del tokenizer.parse_response


class Outcome(Enum):
    """What became of a call of a tool that there is."""

    REACHED = "reached"  # the tool answered
    REFUSED = "refused"  # it raised, and the environment says that it was still waiting for an action
    LATE = "late"  # it raised otherwise


class CallRecorder:
    """Remembers which tool calls raised.

    TRL turns an exception into the text {"error": …}; a tool may return such a text too, and only the first is the host's
    failure. The recorder tells them apart at the call.

    Args:
        before: called before each call of a tool.
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self._raised: Counter[tuple[int, str, str]] = Counter()  # (row, tool, text) -> times
        self._known: dict[int, set[str]] = {}
        self.outcomes: dict[int, list[Outcome]] = {}  # of each row's calls of tools that there are, turn after turn

    def wrap(
        self, dicts: Sequence[Mapping[str, Callable]], ports: Sequence[EpisodePort] = ()
    ) -> list[dict[str, Callable]]:
        """Return the host's {name: tool} of each row, with every tool watched, and its results as texts that can be tokenized.

        Args:
            ports: of the rows' environments, if there are any.
        """
        wrapped: list[dict[str, Callable]] = []
        for row, tools in enumerate(dicts):
            self._known.setdefault(row, set()).update(tools)
            self.outcomes.setdefault(row, [])
            port = ports[row] if ports else None
            wrapped.append({name: self._watch(row, name, tool, port) for name, tool in tools.items()})
        return wrapped

    def failed(self, row: int, message: Message) -> bool:
        """Return whether the host made this tool message up. To be asked once a message, in order."""
        if self._raised:
            key = (row, message["name"], str(message["content"]))
            if self._raised[key]:
                self._raised[key] -= 1
                return True
        return row in self._known and message["name"] not in self._known[row]

    def _watch(self, row: int, name: str, tool: Callable, port: EpisodePort | None) -> Callable:
        outcomes = self.outcomes[row]

        def record(error: BaseException, waited: bool) -> None:
            with suppress(Exception):  # of an error without a text there is no message, either
                text = str(error)
                self._raised[row, name, str({"error": text}) if isinstance(error, Exception) else text] += 1
            outcomes.append(Outcome.REFUSED if waited else Outcome.LATE)

        async def watched(result: Any, waited: bool) -> Any:
            try:
                awaited = encodable(await result)
            except BaseException as error:  # the host makes a result of a cancelled one, too
                record(error, waited)
                raise
            outcomes.append(Outcome.REACHED)
            return awaited

        def call(*args: Any, **kwargs: Any) -> Any:
            self.before()
            waited = port is not None and port.is_waiting
            try:
                result = tool(*args, **kwargs)
            except Exception as error:
                record(error, waited)
                raise
            if asyncio.iscoroutine(result):
                return watched(result, waited)
            outcomes.append(Outcome.REACHED)
            return encodable(result)

        if not inspect.iscoroutinefunction(tool):
            return call

        async def call_and_wait(
            *args: Any, **kwargs: Any
        ) -> Any:  # TRL's asynchronous trainer awaits what looks like this
            return await call(*args, **kwargs)

        return call_and_wait


class Turns:
    """Tells the environments of a batch of the turns of their completions, each once and before its calls run, so that a world
    model is asked about all completions of an iteration together.

    Args:
        ports: of the rows' environments.
        completions: messages of each row, as the host adds to them.
    """

    def __init__(self, ports: Sequence[EpisodePort], completions: Sequence[Any]) -> None:
        self._ports = {row: port for row, port in enumerate(ports) if port.is_turn_aware}
        self._completions = completions
        self._told = dict.fromkeys(self._ports, 0)  # messages

    def tell(self, *, last: bool = False) -> None:
        """Tell what is new. `last`: calls that have not run will not run any more."""
        for row, port in self._ports.items():
            messages, start = self._completions[row], self._told[row]
            self._told[row] = max(start, len(messages)) if isinstance(messages, list) else start
            for place in range(start, self._told[row]):
                message = messages[place]
                if message["role"] == "assistant":
                    answered = place + 1 < len(messages)
                    executed = 0 if last and not answered else None
                    port.turn(message, _results(messages[:place]), executed=executed)


def _results(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the tool messages at the end."""
    texts = [str(message["content"]) for message in takewhile(lambda one: one["role"] == "tool", reversed(messages))]
    return texts[::-1]


def called(completion: Any) -> list[str]:
    """Return the names of a completion's tool calls, in their order; a completion that is a text has none."""
    messages = completion if isinstance(completion, list) else []
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    return [str(call["function"]["name"]) for call in calls]


def unanswered(completion: Any, port: EpisodePort, outcomes: Sequence[Outcome], limit: int) -> int:
    """Return how many answers of an episode brought no action to the environment, though it waited for one.

    Args:
        outcomes: of the calls of its tools, in the order of turns.
        limit: turns with calls that the host runs; the answer after them is the last one.
    """
    messages = completion if isinstance(completion, list) else []
    tools, waits, left = tool_methods(port.environment), port.is_waiting, deque(outcomes)
    count = 0
    for _, results in _tool_groups(messages):
        own = [left.popleft() for message in results if message["name"] in tools and left]
        # of calls of no tool alone it is only known later whether the environment waited
        waited = Outcome.REFUSED in own if own else waits or any(later is not Outcome.LATE for later in left)
        count += waited and Outcome.REACHED not in own
    if Outcome.REFUSED in left and Outcome.REACHED not in left:  # their results were too long, and dropped
        count += 1
    turns = sum(message["role"] == "assistant" for message in messages)
    silent = bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    return count + (silent and waits and turns <= limit)


# Of a block of tool results: the completion's row, the first token, counted from the completion's start, the assistant's message
# with the calls, and the results.
_Place = tuple[int, int, Message | None, list[Message]]


class Rollouts:
    """One generation batch, as the host's hooks show it.

    Args:
        group_size: completions of one prompt.
        end_ids: the tokens that end a turn.
        limit: tokens that a completion may have; None: no limit.
    """

    def __init__(self, group_size: int, *, end_ids: Container[int] = (), limit: int | None = None) -> None:
        self.group_size = group_size
        self.ports: list[EpisodePort] = []  # of the completions' environments, if there are any
        self.turns = Turns((), ())
        self.calls = CallRecorder(before=lambda: self.turns.tell())
        self.turns_taken = 0  # by those that go on longest
        self.completions: list[Any] = []  # messages of each completion, tool messages included
        self.completion_ids: list[list[int]] = []
        self.rewards: list[float] = []  # NaN without any
        self.without_variance: list[bool] = []  # whether the rewards of the completion's group are all equal
        self.silent_groups: list[bool] = []  # the same of each group, over all ranks
        self._end_ids, self._limit = end_ids, limit

    def ending(self, row: int, sampled: Mask | None) -> Ending:
        """Return how a completion ends; `sampled` is (T,), 1 = sampled by the policy, None: all of it."""
        return ending(self.completion_ids[row], sampled, end_ids=self._end_ids, limit=self._limit)

    def origins(
        self,
        tool_masks: Mapping[int, Mask],
        columns: Sequence[Mapping[str, Any]],
        locator: ContentLocator,
        full_block: Callable[[list[Message]], list[int]],
        decode: Decode,
        *,
        categorize: bool,
    ) -> dict[int, list[Origin]]:
        """Return the environment's spans in each completion of `tool_masks`, and what is known of each.

        Args:
            tool_masks: by the completion's row, (T,) without padding, 1 = sampled by the policy.
            columns: every completion's extra columns; `env_spans` among them wins over tool messages.
            full_block: tool messages -> the tokens that the host would append for them.
            decode: token ids -> text, without special tokens.
            categorize: whether the category of each turn is wanted.

        Raises:
            SpanError: the tokens cannot be told apart.
            UserError: `env_spans` that do not fit the completion.
        """
        origins: dict[int, list[Origin]] = {row: [] for row in tool_masks}
        endings = {row: self.ending(row, tool_mask) for row, tool_mask in tool_masks.items()}
        blocks: list[ToolBlock] = []
        places: list[_Place] = []  # of each block
        for row, tool_mask in tool_masks.items():
            length = len(tool_mask)
            runs, groups = zero_runs(tool_mask), _tool_groups(self.completions[row])
            spans: list[Span] | None = None
            if columns[row].get(SPAN_FIELD) is not None:
                spans = read_spans(columns[row][SPAN_FIELD], tool_mask)
            elif not groups:  # a rollout_func that gives env_mask alone: whole runs, of unknown origin
                spans = [Span(start, end, "environment", None, True) for start, end in runs]
            if spans is not None:
                ids = self.completion_ids[row]
                origins[row] = origins_of_tokens(spans, ids, tool_mask, decode, endings[row], categorize=categorize)
                continue
            if len(groups) == len(runs) + 1 and _compat.cut_results_keep_their_message():
                groups.pop()  # the last result was cut away whole
            if len(runs) != len(groups):
                raise SpanError(
                    f"a completion has {len(runs)} blocks of environment tokens but {len(groups)} groups of tool "
                    f"messages; a rollout_func must return {SPAN_FIELD!r} beside env_mask"
                )
            for (start, end), (turn, results) in zip(runs, groups, strict=True):
                cut = end == length  # only at the end of a completion can a block be cut
                blocks.append(
                    ToolBlock(
                        tuple([message["name"] for message in results]),  # a third faster than of a generator
                        tuple([_text(message, full_block) for message in results]),
                        self.completion_ids[row][start:end],
                        full_block(results) if cut else None,
                    )
                )
                places.append((row, start, turn, results))
        for block, ranges, (row, start, turn, results) in zip(blocks, locator.locate(blocks), places, strict=True):
            failed = [self.calls.failed(row, message) for message in results]
            kinds: Sequence[str | None] = [None] * len(results)
            if categorize:
                kinds = categories(turn or {}, results)
            how, mine = endings[row], origins[row]
            mine += [
                Origin(span, results[index], failed[index], kinds[index], how)
                for span, index in block_spans(block, ranges, start)
            ]
        return origins


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


def _text(message: Message, full_block: Callable[[list[Message]], list[int]]) -> str:
    """Return the text that a template writes of a tool message: of a list, its parts or its representation."""
    content = message["content"]
    if isinstance(content, str):
        return content
    written = full_block([message])
    for text in (as_text(content), str(content)):
        if full_block([{**message, "content": text}]) == written:
            return text
    raise SpanError(
        f"tool {message['name']!r} returned content that is not written as a text; the world-model term covers text only: use "
        "coeff 0"
    )
