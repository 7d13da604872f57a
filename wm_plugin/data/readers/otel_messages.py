"""The messages of a model's call in OpenTelemetry's GenAI conventions, those of today and older ones, as chat messages."""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import arguments_of, text_of
from wm_plugin.data.readers.base import object_of
from wm_plugin.data.schema import Fields

# Attributes that hold messages or tools, by their beginnings.
LONG = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"),
    *("gen_ai.prompt", "gen_ai.completion"),
)
_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_VALUES = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")


def attributes(listed: Any) -> Fields:
    """Return attributes as an object: OTLP's list of keys and typed values, or an object already."""
    if isinstance(listed, dict):
        return listed
    pairs = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {text_of(one.get("key")): _value(one.get("value")) for one in pairs}


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for kind in _VALUES:
        if kind in value:
            return value[kind]
    for kind, read in (("arrayValue", lambda values: [_value(one) for one in values]), ("kvlistValue", attributes)):
        if isinstance(inner := value.get(kind), dict):
            return read(inner["values"]) if isinstance(inner.get("values"), list) else read([])
    return None


def asked_and_said(span: Fields) -> tuple[list[Fields], list[Fields]]:
    """Return the messages that a model was sent, and what it said; nothing if they were not recorded."""
    listed = span.get("events")
    events = [event for event in listed if isinstance(event, dict)] if isinstance(listed, list) else []
    held = [span["attributes"], *(attributes(event.get("attributes")) for event in events)]
    asked, said = (_listed(held, f"gen_ai.{side}.messages") for side in ("input", "output"))
    instructions = _first(held, "gen_ai.system_instructions")
    if not said:
        asked, said = (_listed(held, f"gen_ai.{side}") for side in ("prompt", "completion"))
    if not said:
        asked, said = (_indexed(held[0], f"gen_ai.{side}.") for side in ("prompt", "completion"))
    if not said:
        named = [(text_of(event.get("name")), one) for event, one in zip(events, held[1:], strict=True)]
        asked = [{"role": _EVENTS[name], **one} for name, one in named if name in _EVENTS]
        choices = [one for name, one in named if name == "gen_ai.choice"]
        said = [object_of({**one, "message": arguments_of(one.get("message"))}, "message") or one for one in choices]
    messages = [message for one in asked for message in _messages(one)]
    if isinstance(instructions, list):
        content = "".join(text_of(part.get("content")) for part in instructions if isinstance(part, dict))
        messages.insert(0, {"role": "system", "content": content})
    elif instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    return messages, [message for one in said[:1] for message in _messages({"role": "assistant", **one})]


def _first(held: list[Fields], key: str) -> Any:
    return arguments_of(next((one[key] for one in held if key in one), None))


def _listed(held: list[Fields], key: str) -> list[Fields]:
    value = _first(held, key)
    if isinstance(value, str) and value:  # a plain prompt or completion
        return [{"role": "user", "content": value}] if key.endswith("prompt") else [{"content": value}]
    listed = [value] if isinstance(value, dict) else value or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise RowError(f"`{key}` is no list of messages", "no messages")
    return listed


def _indexed(held: Fields, prefix: str) -> list[Fields]:
    """Read messages whose fields are attributes: `gen_ai.prompt.0.content`, `gen_ai.prompt.0.tool_calls.0.name`."""
    messages: dict[str, Fields] = {}
    calls: dict[str, dict[str, Fields]] = {}
    for key, value in held.items():
        number, _, name = key[len(prefix) :].partition(".") if key.startswith(prefix) else ("", "", "")
        if not number.isdecimal():
            continue
        message = messages.setdefault(number, {})
        if name.startswith("tool_calls."):
            _, index, inner = (*name.split(".", 2), "")[:3]
            calls.setdefault(number, {}).setdefault(index, {})[inner] = value
        else:
            message[name] = value
    for number, made in calls.items():
        messages[number]["tool_calls"] = [made[index] for index in sorted(made, key=_order)]
    return [messages[number] for number in sorted(messages, key=_order)]


def _order(index: str) -> tuple[int, str]:
    return len(index), index


def _messages(message: Fields) -> Iterator[Fields]:
    """Write a message as chat messages: one, and one for each result of a tool in it."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        content = arguments_of(message.get("content"))  # an event's attribute may hold parts as JSON text
        is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
        calls = arguments_of(message.get("tool_calls"))
        yield {
            "role": message.get("role"),
            "content": content if is_parts else message.get("content"),
            **({"tool_calls": calls} if calls else {}),
            **{key: message[key] for key in ("name", "tool_call_id", "id", "reasoning_content") if key in message},
        }
        return
    if not all(isinstance(part, dict) for part in parts):
        raise RowError("a message has parts that are no objects", "no messages")
    content, thoughts, calls, results = [], [], [], []
    for part in parts:
        kind = text_of(part.get("type"))
        if kind == "text":
            content.append({"type": "text", "text": text_of(part.get("content"))})
        elif kind == "reasoning":
            thoughts.append(text_of(part.get("content")))
        elif kind.endswith("tool_call"):  # of the application, or of the server
            arguments = part.get("arguments", part.get("server_tool_call"))
            calls.append({"id": part.get("id"), "name": part.get("name"), "arguments": arguments})
        elif kind.endswith("tool_call_response"):
            answer = next(
                (part[key] for key in ("response", "result", "server_tool_call_response") if key in part), None
            )
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": answer})
        else:
            content.append(part)
    if content or thoughts or calls or not results:
        made: Fields = {"role": message.get("role"), "content": content}
        if calls:
            made["tool_calls"] = calls
        if thoughts:
            made["reasoning_content"] = "\n\n".join(thoughts)
        yield made
    yield from results
