"""Decoded rollouts to messages: text in ChatML, with tool calls as Hermes and Qwen models write them.

A call is `<tool_call>{"name", "arguments"}</tool_call>`, or has Qwen-Coder's `<function=name><parameter=key>value</parameter>`
inside. Results are `<tool_response>` in a user's turn. A call that does not parse stays text: the host has not run it either.
"""

import re
from collections.abc import Iterator
from typing import Any

from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import loads

START, END = "<|im_start|>", "<|im_end|>"
_FUNCTION = re.compile(r"<function=([^>\n]+)>")
_NAME = re.compile(r"[^>\n]*")


def messages_of(text: str) -> list[Message]:
    """Read the messages of a ChatML text; none if it has no role marks."""
    messages: list[Message] = []
    for block in text.split(START)[1:]:
        role, _, content = block.partition("\n")
        content = content.partition(END)[0]
        if role.strip() == "assistant":
            if content or END in block:  # else the model's turn was only opened
                messages.append(assistant(content))
        elif role.strip() == "user" and (answers := results(content)):
            messages += answers
        else:
            messages.append({"role": role.strip(), "content": content})
    return messages


def results(text: str) -> list[Message]:
    """Read the tool messages of a user's text that holds only results; none if there is anything else in it."""
    pieces = _cut(text, "tool_response")
    if any(piece.strip() for piece in pieces[::2]):
        return []
    return [{"role": "tool", "content": piece.removeprefix("\n").removesuffix("\n")} for piece in pieces[1::2]]


def assistant(text: str) -> Message:
    """Read a model's output as a message, with its calls."""
    calls, kept = [], []
    for number, piece in enumerate(_cut(text, "tool_call")):
        if number % 2 == 0:
            kept.append(piece)
        elif call := _call(piece):
            calls.append({"function": call})
        else:
            kept.append(f"<tool_call>{piece}</tool_call>")
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": "".join(kept).strip(), "tool_calls": calls}


def tools_of(system: str) -> list[Any]:
    """Read the tools that a system message lists in `<tools>`, one per line; none if a line is not an object."""
    listed = system.partition("<tools>\n")[2]
    end = listed.find("\n</tools>")
    try:
        tools = [loads(line) for line in listed[:end].split("\n")] if end >= 0 else []
    except ValueError:
        return []
    return tools if all(isinstance(tool, dict) for tool in tools) else []


def _cut(text: str, tag: str) -> list[str]:
    """Split a text at a tag's pairs: the texts outside and inside alternate, and the first and last are outside."""
    pieces, place = [], 0
    while (start := text.find(f"<{tag}>", place)) >= 0:
        end = text.find(f"</{tag}>", start)
        if end < 0:
            break
        pieces += [text[place:start], text[start + len(tag) + 2 : end]]
        place = end + len(tag) + 3
    return [*pieces, text[place:]]


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield `<parameter=key>value</parameter>` in one pass: a regular expression would look for the end again and again."""
    place = 0
    while (start := text.find("<parameter=", place)) >= 0:
        start += len("<parameter=")
        place = _NAME.match(text, start).end()  # type: ignore[union-attr]  # it may be empty
        if place == start or not text.startswith(">", place):
            continue  # no name, and if the line ends, none in the rest of it
        end = text.find("</parameter>", place)
        if end < 0:
            return
        yield text[start:place], text[place + 1 : end].removeprefix("\n").removesuffix("\n")
        place = end + len("</parameter>")


def _call(text: str) -> dict[str, Any] | None:
    inside = text.strip()
    if (function := _FUNCTION.match(inside)) and inside.endswith("</function>"):
        parameters = inside[function.end() : -len("</function>")]
        return {"name": function[1].strip(), "arguments": dict(_parameters(parameters))}
    try:
        call = loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    return {"name": call["name"], "arguments": call.get("arguments")}
