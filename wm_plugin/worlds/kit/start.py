"""The beginning of an episode: the context that an agent gets under a host, and the id of its task."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from wm_plugin.data.schema import Context
from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.kit.customer import COLUMNS as CUSTOMER


def context_of(prompt: Any, first: str, tools: tuple[dict[str, Any], ...], world: str) -> Context:
    """Return the context of an episode.

    Args:
        prompt: of the row: None, a text, or messages of system and user.
        first: the first observation, which hosts append to the prompt.
        tools: their schemas.
        world: the hidden state, for world models only.
    """
    if prompt is None or isinstance(prompt, str):
        return Context(action_space=tools, initial_state=(prompt or "") + first, world_context=world)
    texts: dict[str, list[str]] = {"system": [], "user": []}
    for message in prompt if isinstance(prompt, Iterable) else [prompt]:
        fields = message if isinstance(message, Mapping) else {}
        role, content = fields.get("role"), fields.get("content") or ""
        if not isinstance(role, str) or not isinstance(content, str):
            raise UserError(f"the prompt has {shown(message)}; write a text, or messages with a role and a content")
        if role not in texts:
            raise UserError(f"the prompt has a message of the role {shown(role)}; play takes system and user")
        texts[role].append(content)
    state = "\n\n".join(texts["user"]) + first
    return Context(task="\n\n".join(texts["system"]), action_space=tools, initial_state=state, world_context=world)


def task_of(row: Mapping[str, Any]) -> str:
    """Return the id of a row's task: its `task_id`, after its `domain` if it has one, or else a digest of its columns.

    The model that plays the customer is no part of a task.
    """
    if row.get("task_id") is not None:
        return f"{row['domain']}/{row['task_id']}" if row.get("domain") else str(row["task_id"])
    columns = {name: value for name, value in row.items() if name not in CUSTOMER}
    return hashlib.sha256(json.dumps(columns, sort_keys=True, default=str).encode()).hexdigest()[:16]
