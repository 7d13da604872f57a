"""τ-bench results: an array of `{task_id, reward, info, traj: [OpenAI messages], trial}`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.trajectories import files
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.messages import Conversation, text_of
from wm_plugin.trajectories.readers.base import Found, convert_rows, number_of, rest_of
from wm_plugin.trajectories.schema import Context, Source, Trajectory


def matches(head: files.Head) -> bool:
    return isinstance(head.sample, Mapping) and {"task_id", "traj"} <= head.sample.keys()


def read(path: Path, head: files.Head) -> Iterator[Found]:
    return convert_rows(files.records(path, head), convert, "taubench", path)


def convert(record: Any, source: Source) -> Iterator[Trajectory]:
    if not isinstance(record, Mapping) or not isinstance(record.get("traj"), list):
        raise RowError("no list `traj` of messages", "no messages")
    conversation = Conversation()
    for number, message in enumerate(record["traj"], 1):
        conversation.add(message, number)
    reward = number_of(record.get("reward"))
    yield Trajectory(
        turns=conversation.finish(),
        context=Context(task="\n\n".join(conversation.system), initial_state="\n\n".join(conversation.opening)),
        task_id=text_of(record.get("task_id")),
        success=None if reward is None else reward >= 1.0,
        reward=reward,
        source=source,
        metadata=rest_of(record, "traj", "task_id", reward=reward),
    )
