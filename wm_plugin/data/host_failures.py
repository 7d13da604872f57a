"""What hosts write in the place of a result when a call fails: an unknown tool, arguments that do not fit, an exception.

`wm env rollout` marks such results when they are made. A dump has their text alone: TRL writes an exception as
`{'error': text}`, which a tool's own dict of that form looks like, too.
"""

import re
from typing import Any

from wm_plugin.data.fields import Fields

# the text of {"error": text}, as Python writes it
_ERROR = re.compile(r"""\{'error': (?:'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")\}""")
_VERL = (
    "Unknown function '{}'. Available tools: [",
    "Invalid JSON in arguments for '{}': ",
    "Error executing tool '{}': ",
)


def is_trls(text: str) -> bool:
    """Tell whether a result has the form of a failed call under TRL."""
    return bool(_ERROR.fullmatch(text))


def is_verls(text: str, tool: str) -> bool:
    """Tell whether a result of a call of `tool` is verl's text of a failed call."""
    return any(text.startswith(beginning.format(tool)) for beginning in _VERL)


def marked(turns: list[Fields], host: str) -> list[Fields]:
    """Mark the results in a host's dump that the host made up, as `wm env rollout` does."""
    for turn in turns:
        calls: list[Any] = turn["action"].get("calls", [])
        for observation in turn["observations"]:
            place, text = observation.get("call"), observation["text"]
            if place is None:
                continue
            if is_trls(text) if host == "trl" else is_verls(text, calls[place]["name"]):
                observation["error"] = True
                observation["data"] = {**observation.get("data", {}), "actions": 1, "invalid": 1}
    return turns
