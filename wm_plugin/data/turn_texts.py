"""The texts of a turn that `objectives.information` compares: the action's and the observation's."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from wm_plugin.data.errors import RowError
from wm_plugin.data.messages import action_of, text_of
from wm_plugin.data.schema import Action
from wm_plugin.objectives.information import category
from wm_plugin.tokens.message import Waiting

_ESCAPE = re.compile(r"\\(.)")  # in JSON


def action_text(action: Action, call: int | None = None) -> str:
    """Return the action's text and calls (name and JSON arguments).

    Args:
        call: the index of the answered call, to leave the other calls out.
    """
    calls = action.calls if call is None else action.calls[call : call + 1]
    calls_as_text = [f"{c.name} {_arguments_text(c.arguments)}" for c in calls]
    return " ".join(filter(None, [action.text.strip(), *calls_as_text]))


def categories(message: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the category of each tool message in `results`, which follow the assistant's `message` (OpenAI's form).

    The k-th result of a tool answers the k-th call of that tool; without names, the k-th call. If the calls are malformed, for
    example without a name, or nested too deeply, all categories are "other".
    """
    try:
        action = action_of(message)
    except (RowError, ValidationError):
        return ["other"] * len(results)
    waiting = Waiting(call.name for call in action.calls)
    names = []
    for result in results:
        call = waiting.take(result.get("name"))
        names.append(category(action_text(action, call), text_of(result.get("content"))))
    return names


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    # an escaped line break is white space; without this its letter would join the next word
    return _ESCAPE.sub(lambda escape: " " if escape[1] in "bfnrt" else escape[0], text)
