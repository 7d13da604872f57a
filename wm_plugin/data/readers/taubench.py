"""τ-bench results: an array of `{task_id, reward, info, traj: [OpenAI messages], trial}`."""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import Conversation, text_of
from wm_plugin.data.readers.base import number_of, rest_of
from wm_plugin.data.schema import Fields, Source


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, dict) and {"task_id", "traj"} <= head.sample.keys()


def convert(record: Any, source: Source) -> Iterator[Fields]:
    if not isinstance(record, dict) or not isinstance(record.get("traj"), list):
        raise RowError("no list `traj` of messages", "no messages")
    conversation = Conversation(record["traj"])
    reward = number_of(record.get("reward"))
    yield {
        "turns": conversation.fields(),
        "context": {"task": conversation.task, "initial_state": conversation.initial_state},
        "task_id": text_of(record.get("task_id")),
        "success": None if reward is None else reward >= 1.0,
        "reward": reward,
        "source": vars(source),
        "metadata": {**conversation.rest, **rest_of(record, "traj", "task_id", reward=reward)},
    }
