"""mini-swe-agent's `.traj.json`: `{info, messages, trajectory_format}`, or only the list of messages, one rollout per file.

What the shell printed is a tool's result, or, where the agent writes its command as text, a message of the user's: there it is
read as the environment's. A complaint about the form of an action is the agent program's, and marked as such. What the message
says beside the command is part of the action: the file does not separate them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, text_of
from wm_plugin.data.readers import responses
from wm_plugin.data.readers.base import Rows, gathered, rest_of
from wm_plugin.data.schema import Fields, Source

_INFO = ("exit_status", "mini_version", "model_stats")


def matches(head: files.Head) -> bool:
    record = head.sample
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        return False
    info, version = record.get("info"), record.get("trajectory_format")
    known = isinstance(info, dict) and any(key in info for key in _INFO)
    return known or (isinstance(version, str) and version.startswith("mini-swe-agent"))


def read(path: Path, head: files.Head) -> Rows:
    records = files.records(path, head)
    bare = isinstance(head.sample, dict) and "role" in head.sample
    return gathered(records) if bare else records, convert


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if isinstance(record, list):
        record = {"messages": record}
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        raise RowError("no list of messages, or an empty one", "no messages")
    if any(isinstance(message, dict) and "role" not in message for message in messages):  # of OpenAI's Responses
        items = (one["output"] if _is_response(one) else [one] for one in messages)
        messages = responses.messages_of([item for several in items for item in several])
    conversation = Conversation(exact=True)
    for number, message in enumerate(messages, 1):
        if (
            isinstance(message, dict) and message.get("role") == "exit"
        ):  # how the run ended, which the agent did not see
            continue
        conversation.add(message, number, **_observed(message))
    info = record.get("info")
    named = source.file.endswith(".json")  # a file of lines holds several rollouts
    yield {
        "turns": conversation.fields(),
        "context": {"task": conversation.task, "initial_state": conversation.initial_state},
        "task_id": text_of(record.get("instance_id"))
        or (source.file.removesuffix(".json").removesuffix(".traj") if named else ""),
        "success": None,  # the tests that decide are not in the file
        "source": vars(source),
        "metadata": {
            **conversation.rest,
            **(info if isinstance(info, dict) else {}),
            **rest_of(record, "messages", "info", "instance_id"),
        },
    }


def _is_response(message: Any) -> bool:
    return isinstance(message, dict) and message.get("object") == "response" and isinstance(message.get("output"), list)


def _observed(message: Any) -> Fields:
    """Return what is known of a message beside its role and its text, if it becomes an observation."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "tool"):
        return {}
    extra = message.get("extra")
    if not isinstance(extra, Mapping):
        return {"kind": "environment"} if message["role"] == "user" else {}
    if extra.get("interrupt_type") == "FormatError":
        return {"kind": "environment", "error": True, "data": {"actions": 1, "invalid": 1}}
    code = extra.get("returncode")
    data = {} if code is None else {"returncode": code}
    if message["role"] == "tool":
        return {"data": data}
    return {"kind": "user" if "interrupt_type" in extra else "environment", "data": data}
