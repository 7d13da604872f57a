"""What of the state a world model is shown: the part that the agent sees, and those that it does not.

Qwen-AgentWorld gives its world model the initial state, a summary of what is hidden behind a trajectory (the data, permissions,
what is available) and the final state that success requires; its results say that the state is the bottleneck.
"""

from collections.abc import Sequence
from typing import Any

from wm_plugin.errors import UserError, nearest, shown

# A part's name in flags and configs -> the field of a context, in the order of a prompt.
PARTS = {
    "initial-state": "initial_state",
    "summary": "world_context",
    "permissions": "permissions",
    "availability": "availability",
    "final-state": "final_state",
}
# The headings of the parts in a prompt.
UNSEEN = " (the agent does not see it)"
HEADINGS = {
    "initial-state": "Initial state",
    "summary": f"Hidden state at the start{UNSEEN}",
    "permissions": f"Permissions{UNSEEN}",
    "availability": f"What is available{UNSEEN}",
    "final-state": f"Final state that success requires{UNSEEN}",
}
HIDDEN = tuple(field for field in PARTS.values() if field != "initial_state")  # no agent and no judge sees them

# True: all parts. False: the initial state alone, which everybody sees. Otherwise the names of the parts that are shown.
Shown = bool | frozenset[str]


def parts(shown: Shown) -> frozenset[str]:
    """Return the names of the parts that are shown."""
    if isinstance(shown, bool):
        return frozenset(PARTS) if shown else frozenset({"initial-state"})
    return shown


def parse_parts(value: Any, field: str = "--hidden") -> Shown:
    """Parse what a flag or a config says of the parts: names with commas between them, or a list of names; `all`, or `none`."""
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
    elif isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        names = list(value)
    else:
        raise UserError(f"{field} is {shown(value)}; write names of {', '.join(PARTS)}, or all, or none")
    if names in (["all"], ["none"]):
        return True if names == ["all"] else frozenset()
    for name in names:
        if name in ("all", "none"):
            raise UserError(f"{field}: {name} stands alone; leave it out, or the other names")
        if name not in PARTS:
            raise UserError(
                f"{field}: there is no part {shown(name)} of the state{nearest(name, [*PARTS, 'all', 'none'])}"
            )
    if not names:
        raise UserError(f"{field} names no part; write none to show none of {', '.join(PARTS)}")
    chosen = frozenset(names)
    return True if chosen == parts(True) else False if chosen == parts(False) else chosen


def as_json(shown: Shown) -> bool | list[str]:
    """Write the parts for a file of settings; True and False stay what they are, so that earlier runs can go on."""
    return shown if isinstance(shown, bool) else [name for name in PARTS if name in shown]
