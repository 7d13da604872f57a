"""Conversations as text and as tokens: a tokenizer with its chat template.

Hosts take the tokens of tool results from the end of a dummy conversation (a user's line, the calls, the results), so that the
tokens do not depend on the real history. The same conversation is built here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.tokens.message import Message, Waiting
from wm_plugin.tokens.spans import ContentLocator, SpanError
from wm_plugin.untrusted import encodable, loads

_MAX_ROLES = 20  # in a message
_TOOL = "wmTool7Zk3Vx9Lp2"  # letters and digits, which no template changes
# Tokenizers differ on it: each character after a space and after a letter, numbers, runs of white space, other scripts.
_TEXT = "".join(f" {one} a{one}" for one in map(chr, range(33, 127))) + " 12345 don't\n\n  x\t\ty\r\nZażółć 日本語 🚪🏽"


class Chat:
    """Renders and tokenizes conversations.

    Args:
        tokenizer: a fast transformers tokenizer, or anything with its `__call__`, `apply_chat_template` and `eos_token_id`.
        chat_template: used instead of the tokenizer's own.
        chat_template_kwargs: passed to every rendering.
        reminder: None: results are tool messages. A text: they are user messages, each with this text after it.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reminder: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._reminder = reminder
        self._template = chat_template
        self._kwargs = dict(chat_template_kwargs or {})

    @property
    def template(self) -> Any:
        """Return the template in use."""
        return self.tokenizer.chat_template if self._template is None else self._template

    def encode(self, texts: list[str]) -> list[tuple[list[int], list[int]]]:
        """Return each text's token ids and the index of each token's first character."""
        wanted = {"return_offsets_mapping": True, "return_attention_mask": False, "return_token_type_ids": False}
        encoded = self.tokenizer(encodable(texts), add_special_tokens=False, **wanted)
        starts = ([start for start, _ in row] for row in encoded["offset_mapping"])
        return list(zip(encoded["input_ids"], starts, strict=True))

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, tools: Sequence[Any] | None = None
    ) -> str:
        """Render a conversation as text.

        Raises:
            UserError: the template fails on it.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                chat_template=self._template,
                **self._kwargs,
            )
        except Exception as error:  # a template is the user's program, and may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages[:_MAX_ROLES])
            more = f" and {len(messages) - _MAX_ROLES} more" if len(messages) > _MAX_ROLES else ""
            raise UserError(
                f"the chat template cannot write a conversation of {roles}{more} ({type(error).__name__}: {error})"
            ) from error
        return text

    def render_results(self, tools: Sequence[str | None], contents: Sequence[str]) -> str:
        """Render the dummy conversation, which ends in the results of calls of `tools` and the header of the next turn.

        In the place of a result may be the user's message; its tool is None.
        """
        results = _results(tools, contents) if self._reminder is None else users(contents, self._reminder)
        return self.render([*self._before(tools), *results], add_generation_prompt=True)

    def note_on_tools(self) -> str:
        """Return a note if the template's prompts do not list the tools; empty if they do."""
        schema = {"name": _TOOL, "description": "x", "parameters": {"type": "object", "properties": {}}}
        with suppress(UserError):
            text = self.render([{"role": "user", "content": "x"}], tools=[{"type": "function", "function": schema}])
            if _TOOL in text:
                return ""
        return "; its prompts do not list the tools, so the policy must have learnt them"

    def fingerprint(self, tools: Sequence[Any] | None = None) -> str:
        """Return a digest of the tokens of a prompt with these tools and of a result; empty if they cannot be made.

        Two runs write rollouts alike if their digests are equal: tokenizer, template and its arguments are in it.
        """
        try:
            texts = [
                self.render([{"role": "user", "content": _TEXT}], add_generation_prompt=True, tools=tools),
                self.render_results((_TOOL,), (_TEXT,)),
            ]
            ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        except Exception:  # a run does not depend on it
            return ""
        return sha256(json.dumps(ids).encode()).hexdigest()[:16]

    def _before(self, tools: Sequence[str | None]) -> list[Message]:
        calls = _calls(next((tool for tool in tools if tool is not None), None))
        # Without the policy's answer if its calls are plain text: some templates write the last answer differently.
        return calls if self._reminder is None else calls[:1]

    def result_ids(self, tools: Sequence[str | None], contents: Sequence[str]) -> list[int]:
        """Return the tokens that TRL appends to a completion for the results of one turn's calls.

        Raises:
            SpanError: the template writes a call differently once its result follows, so that no tokens can be told apart.
        """
        texts = [self.render(self._before(tools)), self.render_results(tools, contents)]
        before, after = (ids for ids, _ in self.encode(texts))
        eos = self.tokenizer.eos_token_id
        if eos in before:  # text after the end of a turn was not sampled: it belongs to the results
            before = before[: len(before) - before[::-1].index(eos)]
        if after[: len(before)] != before:
            raise SpanError(
                "the chat template is not prefix-preserving (it writes a tool call differently once the result follows): "
                "use a training template, such as those that TRL ships"
            )
        return after[len(before) :]


def make_locator(
    tokenizer: Any,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    reminder: str | None = None,
) -> ContentLocator:
    """Make a locator of tool results' content among the tokens that `tokenizer` and its chat template make of them."""
    chat = Chat(tokenizer, chat_template, chat_template_kwargs, reminder)
    return ContentLocator(
        chat.encode, chat.render_results, partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    )


def users(contents: Sequence[str], reminder: str) -> list[Message]:
    """Return results as user messages, each with the reminder after it."""
    return [{"role": "user", "content": text + reminder} for text in contents]


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Convert messages for templates: arguments as mappings, which OpenAI writes as JSON, and text in place of null."""
    plain: list[Message] = []
    for message in messages:
        message = dict(message)
        if message.get("content") is None and message["role"] == "assistant":
            message["content"] = ""
        if message.get("tool_calls"):
            message["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
        else:
            message.pop("tool_calls", None)
        plain.append(message)
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {"name": call.get("name"), "arguments": call.get("arguments")})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # an unparsable call stays as it was written
            arguments = loads(arguments)
    return {**call, "type": "function", "function": {**function, "arguments": {} if arguments is None else arguments}}


def named_results(messages: list[Message]) -> list[Message]:
    """Add the tool's name to every tool message; OpenAI's form gives it only in the call.

    Raises:
        UserError: a result has neither a name nor a call.
    """
    named: list[Message] = []
    calls: list[Mapping[str, Any]] = []
    waiting = Waiting(())
    for number, message in enumerate(messages, 1):
        if message["role"] == "assistant":
            calls = list(message.get("tool_calls", []))
            waiting = Waiting(call.get("id") for call in calls)
        if message["role"] == "tool" and not message.get("name"):
            place = waiting.take(message.get("tool_call_id"))
            name = None if place is None else calls[place]["function"].get("name")
            if not name:
                raise UserError(f"message {number} of the completion is a tool message without a name; add 'name'")
            message = {**message, "name": name}
        named.append(message)
    return named


def turns(completion: Sequence[Message]) -> Iterator[tuple[str, list[Message]]]:
    """Yield (role, messages) in turn: one assistant message, then the results of its calls together.

    Raises:
        UserError: the messages do not alternate so, or a result is not text.
    """
    if not completion or completion[0]["role"] != "assistant":
        raise UserError("the completion does not begin with an assistant message, so nothing in it was sampled")
    number = 0
    for role, group in groupby(completion, key=lambda message: str(message["role"])):
        messages = list(group)
        number += len(messages)
        if role not in ("assistant", "tool"):
            raise UserError(
                f"message {number} of the completion has the role {shown(role)}: a host's tool loop appends tool results only; "
                "for other observations give 'completion_ids' and 'spans'"
            )
        if role == "assistant" and len(messages) > 1:
            raise UserError(f"message {number} of the completion is a second assistant message in a row")
        for message in messages:
            if role == "tool" and not isinstance(message.get("content"), str):
                raise UserError(f"the result of {shown(message['name'])} (message {number}) is not text")
        yield role, messages


def _calls(tool: str | None) -> list[Message]:
    if tool is None:
        return [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "dummy"}]
    # The real name: some templates write it into the result's header.
    call = {"type": "function", "function": {"name": tool, "arguments": {}}}
    return [{"role": "user", "content": "dummy"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


def _results(tools: Sequence[str | None], contents: Sequence[str]) -> list[Message]:
    return [
        {"role": "user", "content": text} if tool is None else {"role": "tool", "name": tool, "content": text}
        for tool, text in zip(tools, contents, strict=True)
    ]
