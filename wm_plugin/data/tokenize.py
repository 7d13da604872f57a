"""Tokenise samples: token ids and a loss mask that are the same for every host.

The hosts tokenise conversations differently: one message by message, one everything after the prompt, one by marks that few
templates have. None can exclude a single turn. Here the chat template renders the whole conversation, which is tokenised once, as
the model will read it at inference.

To locate the contents that count without searching for them, the conversation is rendered a second time with sentinels in their
place. The text between the sentinels, joined with the contents, must equal the first rendering, character by character. Where it
does not (tool calls, thoughts that a template moves to the front), each message is replaced by a sentinel alone: the part of the
text that does not change with it is not the message's. Calls are not looked for in the text: how they are written is up to the
template, as long as other calls would be written differently.

What the environment said in an agent's dialogue is located in the same way, and written beside the tokens as spans.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from wm_plugin.data.sample import Sample
from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import Chat, named_results, plain_messages
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.spans import Span

# Letters and digits only, so that templates which escape or strip do not change it.
_SENTINEL = "wmCounts{}q7Zk3Vx9Lp2"
_OTHER = "wmOther7Zk3Vx9Lp2"
_OTHERS = 32  # ways in which the calls of a message are changed; each writes the message once
_QUESTION = {"role": "user", "content": "x"}
_ROLES = {"tool": "tool", "user": "user", "system": "system", "developer": "system"}  # of messages -> of spans


class Tokens(NamedTuple):
    """A tokenised sample."""

    ids: list[int]
    mask: list[int]  # 1 = the token counts. The first token never counts: nothing predicts it
    spans: list[Span] | None = None  # what the environment said, of an agent's dialogue; None: it could not be located

    def cut(self, length: int) -> "Tokens":
        """Return the first `length` tokens."""
        spans = self.spans and [one._replace(end=min(one.end, length)) for one in self.spans if one.start < length]
        return Tokens(self.ids[:length], self.mask[:length], spans)


class Tokeniser:
    """Tokenises samples with one tokenizer and its chat template.

    For an assistant's message that counts, the content and the end of the turn count. If it has tool calls, or a thought in
    `reasoning_content`, everything counts that the template writes between the header of the turn and its end. White space after
    the end of the turn does not count. A token belongs to the text in which its first character lies.

    Raises:
        UserError: the tokenizer is slow, so that it has no offsets of tokens, or has no chat template.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{type(tokenizer).__name__} is a slow tokenizer, which cannot say where a token lies; load a fast one "
                "(a folder with a tokenizer.json)"
            )
        if chat_template is None and not getattr(tokenizer, "chat_template", None):
            raise UserError("the tokenizer has no chat template; take that of an instruction-tuned model")
        self._chat = Chat(tokenizer, chat_template)
        question = self._chat.render([_QUESTION])
        header = self._chat.render([_QUESTION], add_generation_prompt=True)
        self._header = header[len(question) :] if header.startswith(question) else ""
        self._end: str | None = None  # of a turn without calls

    def __call__(self, sample: Sample) -> Tokens:
        """Tokenise a sample."""
        messages = plain_messages(sample.messages)
        text = self._chat.render(messages, tools=sample.tools)
        counted = [number for number, counts in enumerate(sample.train) if counts]
        ((ids, starts),) = self._chat.encode([text])
        mask = [0] * len(ids)
        for start, end in self._regions(messages, counted, sample.tools, text):
            first, last = bisect_left(starts, start), bisect_left(starts, end)
            mask[first:last] = [1] * (last - first)
        mask[:1] = [0] * len(mask[:1])
        spans = None
        if sample.observed:
            with suppress(UserError):  # a template that hides contents is good enough to clone the agent
                spans = self._observed(self._chat, messages, sample.tools, (text, starts), mask)
        return Tokens(list(ids), mask, spans)

    def observed(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any],
        ids: Sequence[int],
        trained: Sequence[int],
        *,
        first: int = 0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Span]:
        """Return what the environment said in a dialogue that a host has tokenised.

        Args:
            messages: the dialogue, as the host renders it.
            ids: (T,) its tokens. trained: (T,), 1 = the host trains on the token.
            first: messages before this one are the prompt's.

        Raises:
            UserError: these are not the tokens of these messages, or the template hides where a content is.
        """
        chat = (
            Chat(self._chat.tokenizer, self._chat.template, chat_template_kwargs)
            if chat_template_kwargs
            else self._chat
        )
        text = chat.render(messages, tools=tools)
        ((own, starts),) = chat.encode([text])
        if list(own) != list(ids):
            raise UserError(
                "the tokens of a dialogue are not those of its messages, so that it is not known which the environment wrote; "
                "make rows of tokens by wm data build --as imitation --tokenizer"
            )
        return self._observed(chat, messages, tools, (text, starts), trained, first=first)

    def _observed(
        self,
        chat: Chat,
        messages: Sequence[Message],
        tools: Sequence[Any],
        tokens: tuple[str, Sequence[int]],
        trained: Sequence[int],
        *,
        first: int = 0,
    ) -> list[Span]:
        """Return the spans of the messages of others after the first assistant's, if that is not the prompt's.

        As in a rollout, template text before a content belongs to it, and that after the last content of a turn to the last one.
        It is told from the assistant's turns by the tokens that are trained: where a turn is not, its neighbours have none.

        Args:
            tokens: the dialogue's text, and the index of each token's first character.
        """
        text, starts = tokens
        spoken = [number for number, one in enumerate(messages) if one["role"] == "assistant" and number >= first]
        after = range(spoken[0], len(messages)) if spoken else ()
        numbers = [number for number in after if messages[number]["role"] != "assistant"]
        regions = _contents(chat, messages, numbers, tools, text)
        ranges = {n: (bisect_left(starts, start), bisect_left(starts, end)) for n, (start, end) in regions.items()}
        names = [one.get("name") for one in named_results(plain_messages(messages))] if numbers else []
        counted = [place for place, counts in enumerate(trained) if counts]
        spans: list[Span] = []
        end = 0  # of the contents before this one
        for place, number in enumerate(numbers):
            message, (start, stop) = messages[number], ranges[number]
            role = _ROLES.get(message["role"], "environment")
            tool = names[number] if role == "tool" else None
            begins = end
            if place == 0 or numbers[place - 1] != number - 1:  # a turn of the assistant's comes before
                last = bisect_left(counted, start) - 1
                begins = counted[last] + 1 if last >= 0 and counted[last] >= end else start
            closes = stop
            if number + 1 == len(messages):
                closes = len(trained)
            elif place + 1 == len(numbers) or numbers[place + 1] != number + 1:
                following = bisect_left(counted, stop)
                limit = ranges[numbers[place + 1]][0] if place + 1 < len(numbers) else len(trained)
                if following < len(counted) and counted[following] < limit:
                    closes = counted[following]
            parts = ((begins, start, False), (start, stop, True), (stop, closes, False))
            spans += [Span(one, other, role, tool, content) for one, other, content in parts if other > one]
            end = closes
        return spans

    def prompt_length(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> int:
        """Count the tokens of a prompt, with the header of the turn to be generated."""
        text = self._chat.render(plain_messages(messages), tools=tools, add_generation_prompt=True)
        ((ids, _),) = self._chat.encode([text])
        return len(ids)

    def _regions(
        self, messages: list[Message], counted: Sequence[int], tools: Sequence[Any], text: str
    ) -> list[tuple[int, int]]:
        """Find the characters [start, end) of the text that count."""
        plain = [number for number in counted if not _more_than_content(messages[number])]
        together = self._together(messages, plain, tools, text)
        return [
            together[number] if number in together else self._alone(messages, number, tools, text) for number in counted
        ]

    def _together(
        self, messages: list[Message], numbers: Sequence[int], tools: Sequence[Any], text: str
    ) -> dict[int, tuple[int, int]]:
        """Find the regions of messages without calls and thoughts by one rendering; none if it does not reproduce the text."""
        if not numbers:
            return {}
        rest = self._chat.render(_masked(messages, numbers), tools=tools)
        again, regions = "", {}
        for number in numbers:
            before, _, rest = rest.partition(_SENTINEL.format(number))
            content, end = messages[number]["content"], self._end_of(messages[number])
            if not rest.startswith(end):
                return {}
            start = len(again) + len(before)
            again += before + content
            regions[number] = start, start + len(content + end)
        return regions if again + rest == text else {}

    def _alone(self, messages: list[Message], number: int, tools: Sequence[Any], text: str) -> tuple[int, int]:
        """Find the region of one message: the text between the parts before and after it that do not depend on its content."""
        message = messages[number]
        masked = self._chat.render(_masked(messages, [number]), tools=tools)
        before, sentinel, after = masked.partition(_SENTINEL.format(number))
        if not sentinel:
            return self._without_content(messages, number, tools, text)
        header = before.rfind(self._header) if self._header else -1
        if header >= 0:  # the text between header and content may depend on the content
            before = before[: header + len(self._header)]
        end = self._end_of(message)
        left = len(text) - len(after) + len(end)
        same = after.startswith(end) and text.startswith(before) and text.endswith(after[len(end) :])
        if not same or left < len(before):
            raise UserError(_changed(number))
        if _more_than_content(message):
            start, whole = len(before), text[len(before) : left]
            parts = [message["content"], (message.get("reasoning_content") or "").strip()]
            written = whole.endswith(end.lstrip()) and all(part in whole for part in parts)
            written = written and self._writes_calls(message, tools)
        else:  # the header may begin a thought that the content begins with too
            start = left - len(message["content"] + end)
            written = start >= max(header, 0) and text.startswith(message["content"] + end, start)
        if not written:
            raise UserError(_changed(number))
        return start, left

    def _without_content(
        self, messages: list[Message], number: int, tools: Sequence[Any], text: str
    ) -> tuple[int, int]:
        """Find the region of a message with calls, for a template that writes no content beside them."""
        message = messages[number]
        before = self._header
        if number:
            before = self._chat.render(messages[:number], tools=tools, add_generation_prompt=True)
        question = self._chat.render([_QUESTION], add_generation_prompt=True)
        written = self._chat.render([_QUESTION, message])
        whole = written[len(question) :].rstrip()
        same = not message["content"] and written.startswith(question) and text.startswith(before + whole)
        if not (same and self._writes_calls(message, tools)):
            raise UserError(_changed(number))
        return len(before), len(before) + len(whole)

    def _writes_calls(self, message: Message, tools: Sequence[Any]) -> bool:
        """Tell whether other calls would be written differently.

        How a template writes them is up to it: a compact one may leave out the name of the only tool, or write a letter for an
        argument's value.
        """
        written = self._chat.render([_QUESTION, message])
        for calls in islice(_other_calls(message.get("tool_calls") or [], tools), _OTHERS):
            try:
                other = self._chat.render([_QUESTION, {**message, "tool_calls": calls}])
            except UserError:  # it has no letter for the other value: it depends on it
                continue
            if other == written:
                return False
        return True

    def _end_of(self, message: Message) -> str:
        """Return the text that the template writes after a message's content: its calls and the end of the turn."""
        if not message.get("tool_calls") and self._end is not None:
            return self._end
        probe = self._chat.render([_QUESTION, *_masked([message], [0])])
        end = probe.partition(_SENTINEL.format(0))[2].rstrip()
        if not message.get("tool_calls"):
            self._end = end
        return end


def _contents(
    chat: Chat, messages: Sequence[Message], numbers: Sequence[int], tools: Sequence[Any], text: str
) -> dict[int, tuple[int, int]]:
    """Find the characters [start, end) of messages' contents, by one rendering, or by one each if the template changes them."""
    for number in numbers:
        if not isinstance(messages[number].get("content"), str):
            raise UserError(f"the content of message {number + 1} ({messages[number]['role']}) is not text")
    rest = chat.render(_masked(messages, numbers), tools=tools) if numbers else text
    again, regions = "", {}
    for number in numbers:
        before, _, rest = rest.partition(_SENTINEL.format(number))
        again += before
        regions[number] = len(again), len(again + messages[number]["content"])
        again += messages[number]["content"]
    if again + rest == text:
        return regions
    for number in numbers:
        before, sentinel, after = chat.render(_masked(messages, [number]), tools=tools).partition(
            _SENTINEL.format(number)
        )
        same = sentinel and text.startswith(before) and text.endswith(after) and len(before + after) <= len(text)
        if not same:
            raise UserError(
                f"the chat template does not write the content of message {number + 1} ({messages[number]['role']}) as text of "
                "its own; take a template that does"
            )
        regions[number] = len(before), len(text) - len(after)
    return regions


def _more_than_content(message: Message) -> bool:
    return bool(message.get("tool_calls") or message.get("reasoning_content"))


def _other_calls(calls: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield a message's calls with one thing changed: an argument, the name if there are several tools, or a call left out."""
    schemas = [tool.get("function", tool) for tool in tools]
    names = {
        schema["name"] for schema in schemas if isinstance(schema, Mapping) and isinstance(schema.get("name"), str)
    }
    names |= {call["function"]["name"] for call in calls}
    for index, call in enumerate(calls):
        before, after = calls[:index], calls[index + 1 :]
        for function in _other_functions(call["function"], names):
            yield [*before, {**call, "function": function}, *after]
        yield [*before, *after]


def _other_functions(function: Mapping[str, Any], names: Collection[str]) -> Iterator[dict[str, Any]]:
    arguments = function["arguments"]
    if isinstance(arguments, Mapping):
        for argument, value in arguments.items():
            yield {**function, "arguments": {**arguments, argument: _other_than(value)}}
    elif arguments:  # text that is no JSON
        yield {**function, "arguments": _other_than(arguments)}
    if other := next((name for name in names if name != function["name"]), None):
        yield {**function, "name": other}


def _other_than(value: Any) -> str:
    return "" if value == _OTHER else _OTHER


def _masked(messages: Sequence[Message], numbers: Sequence[int]) -> list[Message]:
    masked = list(messages)
    for number in numbers:
        masked[number] = {**messages[number], "content": _SENTINEL.format(number)}
    return masked


def _changed(number: int) -> str:
    return (
        f"the chat template changes message {number + 1} (strips it, leaves a part out, or writes it anew): what would be "
        "trained on is not what the data say; take a template that writes contents as they are"
    )
