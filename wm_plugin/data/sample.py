"""A training sample for either host: messages, which of them count, and columns for rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.tokens.message import Message


@dataclass(frozen=True)
class Sample:
    """A conversation to train on.

    Args:
        messages: the conversation. The trained model's messages have the role `assistant`, even where it plays the world.
        train: a flag per message; True = its tokens count for the loss. Only an assistant's message may count.
        observed: whether the other messages after the first assistant's are what the environment said to an agent.
        columns: values for rewards and reports: `target`, `observer`, `task_id`, ...
    """

    messages: Sequence[Message]
    train: Sequence[bool]
    tools: Sequence[dict[str, Any]] = ()
    columns: dict[str, Any] = field(default_factory=dict)
    observed: bool = False

    def __post_init__(self) -> None:
        if len(self.messages) != len(self.train):
            raise ValueError(f"{len(self.messages)} messages but {len(self.train)} flags")
        for message, counts in zip(self.messages, self.train, strict=True):
            if counts and message["role"] != "assistant":
                raise ValueError(f"a message of the role {message['role']!r} cannot count: only an assistant's can")
