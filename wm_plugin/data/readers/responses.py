"""OpenAI's Responses: items of messages, reasoning, calls and outputs of calls.

A record is a request with its response (`{responses_create_params, response, reward}` of NeMo Gym, `{request, response}`), a
response with its `output` and perhaps `input`, `{items: [...]}`, or a list of items. A file may also hold an item a line, of one
conversation. Reasoning, a message and calls that follow each other are one action. Where the `output` is a list of histories
(NeMo Gym's Aviary), those that the next one does not continue are read, each as a trajectory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, flag_of, text_of
from wm_plugin.data.readers.base import Rows, check_common, gathered, number_of, object_of, rest_of, task_of, tools_of
from wm_plugin.data.schema import Fields, Source
from wm_plugin.data.thoughts import joined

_REQUESTS = ("responses_create_params", "request")
_USED = (*_REQUESTS, "response", "input", "output", "items", "tools", "instructions", "task_id", "instance_id")
_ITEMS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)
_ASIDE = ("compaction", "item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response")  # no turns
_READ = {
    "type",
    "role",
    "content",
    "summary",
    "call_id",
    "id",
    "name",
    "arguments",
    "input",
    "output",
    "error",
    "status",
}


def matches(head: files.Head) -> bool:
    record = head.sample
    if not isinstance(record, dict):
        return False
    if _is_item(record):
        return head.layout in ("array", "lines")
    if "responses_create_params" in record or record.get("object") == "response":
        return True
    if isinstance(record.get("request"), dict) and isinstance(record.get("response"), dict):
        return "input" in record["request"] and "output" in record["response"]
    listed = record.get("items"), record.get("output"), record.get("input")
    return any(isinstance(items, list) and any(map(_is_item, items)) for items in listed)


def read(path: Path, head: files.Head) -> Rows:
    records = files.records(path, head)
    return gathered(records) if _is_item(head.sample) else records, convert


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if isinstance(record, list):
        record = {"items": record}
    if not isinstance(record, dict):
        raise RowError("not an object", "wrong type")
    response = record["response"] if isinstance(record.get("response"), dict) else record
    histories = response.get("output")
    if isinstance(histories, list) and histories and all(isinstance(history, list) for history in histories):
        following = zip(histories, [*histories[1:], []], strict=True)
        ends = [history for history, next_one in following if next_one[: len(history)] != history]
        rest = rest_of(response, "output")
        check_common(rest if response is record else {**record, "response": rest}, len(ends))
        for history in ends:
            last = {**response, "output": history}
            yield _fields(last if response is record else {**record, "response": last}, source)
    else:
        yield _fields(record, source)


def _fields(record: Fields, source: Source) -> Fields:
    """Return a trajectory of a record with one history."""
    request = next((record[key] for key in _REQUESTS if isinstance(record.get(key), dict)), record)
    response = record["response"] if isinstance(record.get("response"), dict) else record
    asked, said = _list(request, "input"), _list(response, "output") + _list(record, "items")
    if not said and not (request is record and asked):
        raise RowError("a request without the items of a response", "no response")
    messages = messages_of([*asked, *said])
    if isinstance(instructions := request.get("instructions") or response.get("instructions"), str):
        messages.insert(0, {"role": "system", "content": instructions})
    conversation = Conversation(messages, exact=True)
    success, reward = flag_of(record.get("success", record.get("resolved"))), number_of(record.get("reward"))
    names = [record.get("task_id"), record.get("instance_id"), object_of(request, "metadata").get("instance_id")]
    names.append(record.get("_ng_task_index"))
    task = next((text_of(name) for name in names if name not in (None, "")), task_of(asked) if asked and said else "")
    identity = response.get("id")
    read = {"success": success, "resolved": success, "reward": reward}
    return {
        "turns": conversation.fields(),
        "context": {
            "task": conversation.task,
            "action_space": tools_of(request.get("tools"), response.get("tools")),
            "initial_state": conversation.initial_state,
        },
        "task_id": task,
        "success": success,
        "reward": reward,
        "source": vars(source) if identity is None else {**vars(source), "id": text_of(identity)},
        "metadata": {
            **conversation.rest,
            **rest_of(record, *_USED, **read),
            **{
                name: {key: value for key, value in part.items() if value and key not in ("input", "output", "tools")}
                for name, part in (("request", request), ("response", response))
                if part is not record
            },
        },
    }


def messages_of(items: list[Any]) -> list[Fields]:
    """Write items as chat messages.

    Raises:
        RowError: an item is no object, or of no known type.
    """
    messages: list[Fields] = []
    latest: Fields | None = None  # the assistant's message that the next items may belong to

    def said(*signs: str) -> Fields:
        """The latest message of the assistant; a new one if something else followed, or it has one of these keys."""
        nonlocal latest
        if latest is None or any(sign in latest for sign in signs):
            latest = {"role": "assistant"}
            messages.append(latest)
        return latest

    def heard(message: Fields) -> Fields:
        nonlocal latest
        latest = None
        messages.append(message)
        return message

    for number, item in enumerate(items, 1):
        kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
        if not isinstance(kind, str):
            raise RowError(f"item {number} has no type")
        if kind in _ASIDE:
            continue
        if kind == "message" and item.get("role") == "assistant":
            message = said("tool_calls", "content")
            message["content"] = _content(item.get("content"))
        elif kind == "message":
            message = heard({"role": item.get("role"), "content": item.get("content")})
        elif kind == "reasoning":
            message = said("tool_calls", "content")
            thoughts = (text_of(item.get(key) or None) for key in ("content", "summary"))
            message["reasoning"] = joined(message.get("reasoning"), *thoughts)
        elif kind.endswith("_call_output"):
            message = heard(_result(item))
        elif kind.endswith("_call"):
            message = said()
            identity = item.get("call_id") or item.get("id")
            message.setdefault("tool_calls", []).append(_call(kind, item, identity))
            if item.get("output") is not None or item.get("error"):  # the server called the tool
                heard(_result(item | {"call_id": identity}))
        else:
            raise RowError(f"item {number} has the type {kind!r}")
        if rest := {key: value for key, value in item.items() if key not in _READ and value not in (None, [], {})}:
            message.setdefault("items", []).append(rest)
    return messages


def _is_item(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in _ITEMS and value.keys() & _READ > {"type"}


def _list(holder: dict[str, Any], key: str) -> list[Any]:
    value = holder.get(key)
    if isinstance(value, str):  # a request's only message
        return [{"role": "user", "content": value}] if key == "input" else []
    if value is not None and not isinstance(value, list):
        raise RowError(f"`{key}` is no list of items", "wrong type")
    return value or []


def _content(content: Any) -> Any:
    """Return an assistant's content, with a refusal as text."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in content
    ]


def _call(kind: str, item: Fields, identity: Any) -> Fields:
    name = item.get("name") or kind.removesuffix("_call")
    given = (item[key] for key in ("arguments", "input", "action", "code", "queries") if item.get(key) is not None)
    return {"id": identity, "function": {"name": name, "arguments": next(given, None)}}


def _result(item: Fields) -> Fields:
    message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if error := item.get("error"):
        message |= {"error": error, "content": item.get("output") if item.get("output") is not None else text_of(error)}
    return message
