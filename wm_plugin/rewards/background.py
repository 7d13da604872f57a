"""What a judge sees of the turns before an action: everything if it fits the judge's model, else without the oldest turns.

The description of the world (task, tools, initial state, simulation instruction) stays, as do the latest turns, whole; a line
tells how much is left out between them. Cutting characters from the beginning would lose the description first.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from wm_plugin.errors import shown

# Headings that `data.render` writes: of a turn, and of the last part of the world's description.
_TURN = re.compile(r"[^\n]{1,200} \(turn ([0-9]{1,9})\):\n")
_LAST = "# Simulation instruction\n"
Count = Callable[[str], int]


def as_text(value: Any) -> str:
    """Return a column's value as text for the judge: messages one after the other, other values as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if _are_messages(value):
        return "\n\n".join(map(_message, value))
    return written(value, partial(json.dumps, ensure_ascii=False, default=str))


def written(value: Any, write: Callable[[Any], str]) -> str:
    """Write a dataset's value, or what `shown` makes of one that has too many levels or digits, or keys that are no text."""
    try:
        return write(value)
    except (ValueError, TypeError, RecursionError):
        return shown(value)


def fitted(value: Any, limit: int, count: Count = len) -> tuple[str, int]:
    """Return a context of about `limit` or less by `count`, and how many characters are left out.

    Args:
        value: a text with the headings of `data.render`, or messages. A text without such headings loses its middle.
        limit: what may be shown. Neither the world's description nor the turns are cut below half of it for the other.
        count: counts characters, or a judge's tokens.
    """
    head, turns = _parts(value)
    share = limit - _needed(turns, limit // 2, count)
    first, left_out = _middle_cut(head, share, count)
    room, start = limit - min(count(first), share), len(turns)  # notes are not counted
    while start and (needed := count(turns[start - 1])) <= room:
        room, start = room - needed, start - 1
    shown = turns[start:]
    if start and not shown:  # the latest turn alone is too long: its end shows the state that the action meets
        start -= 1
        last = _ending(turns[start], max(room, 1), count)
        left_out += len(turns[start]) - len(last)
        shown = [f"(cut here: {len(turns[start]) - len(last)} characters)\n{last}"]
    earlier = sum(map(len, turns[:start]))
    notes = [f"(left out here: {start} earlier turns, {earlier} characters)"] if start else []
    return "\n\n".join(filter(None, [first, *notes, *shown])), left_out + earlier


def _needed(turns: Sequence[str], most: int, count: Count) -> int:
    """Return what the turns need, up to `most`."""
    needed = 0
    for turn in reversed(turns):
        needed += count(turn)
        if needed >= most:
            return most
    return needed


def _parts(value: Any) -> tuple[str, list[str]]:
    """Split a context into the world's description and the turns."""
    if _are_messages(value):
        roles = [_role(message) for message in value]
        heads = next((place for place, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        return "\n\n".join(map(_message, value[:heads])), [_message(message) for message in value[heads:]]
    groups: list[list[str]] = [[]]
    number = ""
    blocks = as_text(value).split("\n\n")
    described = max((place for place, block in enumerate(blocks) if block.startswith(_LAST)), default=-1)
    for place, block in enumerate(blocks):
        heading = _TURN.match(block) if place > described else None  # demonstrations have turns, too
        if heading and heading[1] != number:
            groups.append([])
            number = heading[1]
        groups[-1].append(block)
    head, *turns = ["\n\n".join(group) for group in groups]
    return head, turns


def _are_messages(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, Mapping) and "role" in one for one in value)


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        content = written(content, partial(json.dumps, default=str))
    return f"{_role(message)}: {content or ''}"


def _role(message: Mapping[str, Any]) -> str:
    role = message["role"]
    return role if isinstance(role, str) else shown(role)


def _middle_cut(text: str, limit: int, count: Count) -> tuple[str, int]:
    """Cut a text's middle until it fits; return the text and the number of characters left out."""
    if count(text) <= limit:
        return text, 0
    half = limit // 2
    first, last = _beginning(text, half, count), _ending(text, limit - half, count)
    left_out = len(text) - len(first) - len(last)
    return f"{first}\n(cut here: {left_out} characters)\n{last}", left_out


def _beginning(text: str, limit: int, count: Count) -> str:
    """Return the longest beginning that fits, cut at a line end if one is in its second half."""
    text = text[: _longest(text, limit, count, lambda size: text[:size])]
    line = text.rfind("\n")
    return text[:line] if line > len(text) // 2 else text


def _ending(text: str, limit: int, count: Count) -> str:
    """Return the longest end that fits, cut at a line's beginning if one is in its first half."""
    text = text[len(text) - _longest(text, limit, count, lambda size: text[len(text) - size :]) :]
    line = text.find("\n")
    return text[line + 1 :] if 0 <= line < len(text) // 2 else text


def _longest(text: str, limit: int, count: Count, part: Callable[[int], str]) -> int:
    """Return the largest number of characters whose part fits, by bisection: twenty counts for a million characters."""
    return bisect_right(range(len(text) + 1), limit, key=lambda size: count(part(size))) - 1
