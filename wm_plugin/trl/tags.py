"""WMAct's text protocol on TRL: answers are read by a tokenizer of the trainer's own, whose `parse_response` knows the tags."""

import copy
from collections.abc import Container
from typing import Any

from wm_plugin.hosting.tags import PARAMETER, TOOL, actions_of


def reader(
    tokenizer: Any, *, thinking: bool, limit: int | None, end_ids: Container[int], predictions: str | None = None
) -> Any:
    """Return a copy of a tokenizer that reads the actions between tags as a call; an answer without them is a final one.

    Args:
        thinking: prompts end in an open `<think>`.
        limit: tokens that an answer may have; None: unknown.
        end_ids: the tokens that end an answer. One without them that has `limit` tokens was cut, and has no action.
        predictions: the tag whose content is left out before actions are read.
    """

    def parse_response(ids: Any, *_: Any, **__: Any) -> dict[str, Any]:
        cut = limit is not None and len(ids) >= limit and ids[-1] not in end_ids
        answer = tokenizer.decode(ids)
        if predictions is not None:
            from wm_plugin.hosting.predictions import acting

            answer = acting(answer, predictions, thinking=thinking).acting
        actions = None if cut else actions_of(answer, thinking=thinking)
        message: dict[str, Any] = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
        if actions is not None:
            function = {"name": TOOL, "arguments": {PARAMETER: actions}}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message

    own = copy.copy(tokenizer)
    own.parse_response = parse_response
    return own
