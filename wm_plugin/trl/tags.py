"""WMAct's text protocol on TRL: answers are read by a tokenizer of the trainer's own, whose `parse_response` knows the tags."""

import copy
from typing import Any

from wm_plugin.environments.tags import PARAMETER, TOOL, actions_of


def reader(tokenizer: Any) -> Any:
    """A copy of a tokenizer that reads the actions between tags as a call; an answer without them is a final one."""

    def parse_response(ids: Any, *_: Any, **__: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        actions = actions_of(text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if actions is not None:
            function = {"name": TOOL, "arguments": {PARAMETER: actions}}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message

    own = copy.copy(tokenizer)
    own.parse_response = parse_response
    return own
