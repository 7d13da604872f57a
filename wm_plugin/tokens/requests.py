"""The requests of an agent that keeps its own history: which tokens of each prompt the environment wrote.

The agent asks the policy over HTTP. Of every request the prompt's tokens, the sampled tokens and the messages are captured, and
nothing else is known. A prompt that begins with an earlier prompt and its answer, token by token, has only new tokens behind
them. An agent that rewrites or compacts its history makes prompts that extend no other one; there the messages after the policy's
last answer are located at the prompt's end, where the template writes them alike whatever stands before. What the template makes
of the messages is compared with the captured tokens, and never takes their place.
"""

from array import array
from collections.abc import Container, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import Chat, named_results, plain_messages
from wm_plugin.tokens.message import Message, as_text
from wm_plugin.tokens.spans import ContentLocator, Span, SpanError, ToolBlock, block_spans

_TOKEN = array("q").itemsize  # bytes


class Request(NamedTuple):
    """A request as it was captured.

    Attributes:
        prompt_ids: the whole prompt, as the server tokenized it.
        sampled_ids: the answer.
        messages: what the agent sent, in OpenAI's form.
    """

    prompt_ids: list[int]
    sampled_ids: list[int]
    messages: Sequence[Message]


class History(StrEnum):
    """How a request's prompt relates to those before it."""

    BEGINS = "begins"  # a conversation: the policy has answered nothing in it
    EXTENDS = "extends"  # an earlier request, token by token
    REWRITTEN = "rewritten"  # it has answers of the policy, and extends no request


class Reading(NamedTuple):
    """What is new in a request's prompt.

    Attributes:
        history: how the prompt came about.
        spans: the environment's new tokens, each with the index of its message; None: which message it is of is not known.
        turn: the policy's answer before them.
        messages: the new ones; a tool's has the tool's name.
        problem: why new tokens could not be told apart; None if they could, or if there are none.
    """

    history: History
    spans: list[tuple[Span, int | None]]
    turn: Message | None = None
    messages: Sequence[Message] = ()
    problem: str | None = None


def read_requests(
    requests: Sequence[Request], chat: Chat, locator: ContentLocator, end_ids: Container[int]
) -> list[Reading]:
    """Return what is new in each request of a rollout, in the order in which they were answered.

    New tokens behind an extended prompt that no message explains are a span of scaffold, of the role "environment".

    Args:
        chat, locator: of the policy's tokenizer and chat template.
        end_ids: the tokens that end a turn.
    """
    readings = []
    for number, (request, extended) in enumerate(zip(requests, _extended(requests), strict=True)):
        earlier = None if extended is None else requests[extended]
        end = None if earlier is None else len(earlier.prompt_ids) + len(earlier.sampled_ids)
        turn: Message | None = None
        messages: list[Message] = []
        problem = None
        spans: list[tuple[Span, int | None]] = []
        try:
            turn, messages = _after_the_answer(request.messages)
            if messages:
                spans = [*_locate(request.prompt_ids, end, messages, chat, locator, end_ids)]
            if earlier is not None and len(request.messages) - len(messages) > len(earlier.messages) + 1:
                problem = "messages before the last answer are new, and the policy gave another answer"
        except (SpanError, UserError) as error:
            problem = str(error)
        except (KeyError, TypeError, AttributeError, ValueError) as error:  # no messages of OpenAI's form
            problem = f"its messages cannot be read ({type(error).__name__}: {error})"
        if end is None:
            begins = number == 0 or (turn is None and problem is None)
            readings.append(
                Reading(History.BEGINS, []) if begins else Reading(History.REWRITTEN, spans, turn, messages, problem)
            )
            continue
        if not spans and end < len(request.prompt_ids):
            spans = [(Span(end, len(request.prompt_ids), "environment", None, False), None)]
            problem = problem or "its prompt goes on behind an answer, and no message of a tool or the user follows"
        readings.append(Reading(History.EXTENDS, spans, turn, messages, problem))
    return readings


def _extended(requests: Sequence[Request]) -> list[int | None]:
    """Return for each request the earlier one whose prompt and answer its prompt begins with, the longest; None: no such one.

    Every prompt is read once: prefixes are compared by their digests.
    """
    ends: dict[tuple[int, bytes], int] = {}  # tokens and digest of a prompt with its answer -> the first such request
    found: list[int | None] = []
    for place, request in enumerate(requests):
        prompt = memoryview(array("q", request.prompt_ids).tobytes())
        digest, done, longest = blake2b(), 0, None
        for length in sorted({length for length, _ in ends}):
            if length > len(request.prompt_ids):
                break
            digest.update(prompt[done * _TOKEN : length * _TOKEN])
            done = length
            longest = ends.get((length, digest.digest()), longest)
        found.append(longest)
        whole = [*request.prompt_ids, *request.sampled_ids]
        ends.setdefault((len(whole), blake2b(array("q", whole).tobytes()).digest()), place)
    return found


def _after_the_answer(messages: Sequence[Message]) -> tuple[Message | None, list[Message]]:
    """Return the policy's last message, None if there is none, and those behind it."""
    place = next((index for index in reversed(range(len(messages))) if messages[index]["role"] == "assistant"), None)
    if place is None:
        return None, []
    turn, *results = named_results(plain_messages(messages[place:]))
    return turn, results


def _locate(
    prompt: list[int],
    end: int | None,
    messages: Sequence[Message],
    chat: Chat,
    locator: ContentLocator,
    end_ids: Container[int],
) -> list[tuple[Span, int]]:
    """Return the spans of the messages at the end of a prompt.

    Args:
        end: where the new tokens begin; None: right behind the last token before the messages that ends a turn.

    Raises:
        SpanError: the prompt does not end as the template writes these messages.
    """
    if other := [message["role"] for message in messages if message["role"] not in ("tool", "user")]:
        raise SpanError(
            f"a message with the role {other[0]!r} follows the policy's answer; of a tool or the user is understood"
        )
    names = tuple(message["name"] if message["role"] == "tool" else None for message in messages)
    contents = tuple(as_text(message["content"]) for message in messages)
    ((rendered, _),) = chat.encode([chat.render_results(names, contents)])
    shared = 0
    while shared < min(len(rendered), len(prompt)) and rendered[-shared - 1] == prompt[-shared - 1]:
        shared += 1
    start = len(prompt) - shared
    (ranges,) = locator.locate([ToolBlock(names, contents, prompt[start:])])
    first = start + ranges[0][0]
    if first == start or (end is not None and first < end):
        raise SpanError(
            "its prompt does not end as the chat template writes the last messages: the server must use this tokenizer's "
            "template, with the chat_template_kwargs that the rollout worker was given"
        )
    if end is None:
        end = next((index + 1 for index in reversed(range(start, first)) if prompt[index] in end_ids), first)
    block = ToolBlock(names, contents, prompt[end:])
    moved = [(low + start - end, high + start - end) for low, high in ranges]
    return block_spans(block, moved, end)
