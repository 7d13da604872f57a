"""OpenAI chat messages, one conversation a record: `{messages: [...], tools?: [...]}`.

Old files have `function_call` and role `function`, without ids; τ²-bench's fine-tuning files are of this form too.
"""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, arguments_of, flag_of, text_of
from wm_plugin.data.readers.base import number_of, rest_of
from wm_plugin.data.schema import Fields, Source


def matches(head: files.Head) -> bool:
    record = head.sample
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list):
        return False
    # the sample of a long document has an empty list
    return not messages or (isinstance(messages[0], dict) and "role" in messages[0])


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise RowError("no list of messages", "no messages")
    tools: list[Any] = []
    for key in ("tools", "functions"):
        listed = arguments_of(record.get(key)) or []  # some files have the list as text
        if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
            raise RowError(f"`{key}` is no list of objects", "bad tools")
        tools += listed
    conversation = Conversation(record["messages"])
    identity, task = record.get("id"), record.get("task_id")
    success, reward = flag_of(record.get("success")), number_of(record.get("reward"))
    yield {
        "turns": conversation.fields(),
        "context": {"task": conversation.task, "action_space": tools, "initial_state": conversation.initial_state},
        "task_id": text_of(identity if task is None else task),
        "success": success,
        "reward": reward,
        "source": vars(source) if identity is None else {**vars(source), "id": text_of(identity)},
        "metadata": {
            **conversation.rest,
            **rest_of(record, "messages", "tools", "functions", "id", "task_id", success=success, reward=reward),
        },
    }
