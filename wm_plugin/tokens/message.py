"""A chat message."""

from typing import Any

Message = dict[str, Any]  # {"role", "content", "tool_calls"?, "name"?}, as OpenAI's API has it
