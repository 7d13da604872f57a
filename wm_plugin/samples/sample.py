"""What is trained on, before it takes a host's form: messages, which of them count, and columns for rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.tokens.message import Message


@dataclass(frozen=True)
class Sample:
    """A conversation to train on.

    Args:
        messages: from the system's on. A model's turns have the role `assistant`, whoever it plays.
        train: one a message; True = its tokens count. Only an assistant's message may count.
        tools: JSON schemas for the prompt.
        columns: what a reward or a report wants to know: `target`, `observer`, `task_id`, ...
    """

    messages: Sequence[Message]
    train: Sequence[bool]
    tools: Sequence[dict[str, Any]] = ()
    columns: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.messages) != len(self.train):
            raise ValueError(f"{len(self.messages)} messages but {len(self.train)} flags")
        for message, counts in zip(self.messages, self.train, strict=True):
            if counts and message["role"] != "assistant":
                raise ValueError(f"a message of the role {message['role']!r} cannot count: only an assistant's can")
