"""The two texts of a turn that `objectives.information` compares: what the agent wrote, and what was answered."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wm_plugin.objectives.information import category
from wm_plugin.trajectories.errors import RowError
from wm_plugin.trajectories.messages import action_of, text_of
from wm_plugin.trajectories.schema import Action

_ESCAPE = re.compile(r"\\(.)")  # in JSON


def action_text(action: Action, call: int | None = None) -> str:
    """What the actor wrote: its text and its calls (name and JSON arguments); of several calls, the one that was answered."""
    calls = action.calls if call is None else action.calls[call : call + 1]
    written = [f"{c.name} {_arguments_text(c.arguments)}" for c in calls]
    return " ".join(filter(None, [action.text.strip(), *written]))


def categories(message: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The category of each tool message in `results`, which follow the assistant's `message` (OpenAI's form, as hosts keep it).

    The k-th result of a tool answers the k-th call of that tool; without names, the k-th call. Calls that no reader would take,
    such as those of a model that writes no name, are not compared: other.
    """
    try:
        action = action_of(message)
    except RowError:
        return ["other"] * len(results)
    waiting = list(range(len(action.calls)))
    found = []
    for result in results:
        call = next((k for k in waiting if action.calls[k].name == result.get("name")), waiting[0] if waiting else None)
        if call is not None:
            waiting.remove(call)
        found.append(category(action_text(action, call), text_of(result.get("content"))))
    return found


def _arguments_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    # an escaped line break is white space, not the first letter of the next word
    return _ESCAPE.sub(lambda escape: " " if escape[1] in "bfnrt" else escape[0], text)
