"""What a judge decided, read from its reply. Models write what is nearly JSON, in fences, with text around it.

The verdict is in the **last** `<final_evaluation>` of the reply: a judge that quotes a verdict which the prediction tried to give
itself has its own after it. Where that one cannot be read, none of the others is taken for it. Without a tag it is the last JSON
object of the reply that has all that was asked for.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

TAG = "final_evaluation"
_OPENS = re.compile(rf"<\s*{TAG}\s*>", re.IGNORECASE)
_CLOSES = re.compile(rf"<\s*/\s*{TAG}\s*>", re.IGNORECASE)
_LONGEST = 1 << 15  # characters that are looked at, from the end
_TRIES = 200  # braces that may begin an object
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NUMBER = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s*(?:/|out of)\s*([0-9]{1,9}))?")
# a name, and its value, bare or as the score in an object
_VALUE = r"""(?<!\w)NAME["'“”*`]*\s*[:=](?:\s*\{[^{}]*(?<!\w)score["'“”*`]*\s*[:=])?[\s"'“”*`]*([^\s"'“”*`,;{}]+)"""
_DECODER = json.JSONDecoder()


def fields(reply: str, names: Sequence[str]) -> dict[str, Any]:
    """The value of each name in the verdict; names that are not there are left out.

    Keys are found whatever their case, one level deeper too (`{"scores": {...}}`), and a value may stand in an object of its own
    (`{"format": {"reason": ..., "score": 4}}`).
    """
    text = _TRAILING_COMMA.sub("", _last_block(reply))
    for candidate in reversed(_objects(text)):
        found = _pick(candidate, names)
        if len(found) == len(names):
            return found
    return _search(text, names)


def number(value: Any, low: float, high: float) -> float | None:
    """A score, clamped to [low, high]: a number, or text that is one, as `4`, `4/5`, `4 out of 5`; None if it is neither."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip().strip("*.").strip())
        if not match or (match[2] and float(match[2]) != high):
            return None
        value = float(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(min(max(value, low), high))


def _last_block(reply: str) -> str:
    reply = reply[-_LONGEST:]
    for opening in reversed(list(_OPENS.finditer(reply))):
        return _CLOSES.split(reply[opening.end() :], maxsplit=1)[0]
    return reply


def _objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text that are not inside another, in order."""
    found: list[dict[str, Any]] = []
    place = 0
    for _ in range(_TRIES):
        place = text.find("{", place)
        if place < 0:
            break
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        found.append(value)
    return found


def _pick(value: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The names of an object, or of the first object in it that has any."""
    for candidate in (value, *(inner for inner in value.values() if isinstance(inner, dict))):
        by_name = {key.strip().lower(): inner for key, inner in candidate.items()}
        if found := {name: _score(by_name[name]) for name in names if name in by_name}:
            return found
    return {}


def _score(value: Any) -> Any:
    if isinstance(value, dict):
        return next(
            (inner for key, inner in value.items() if key.strip().lower() in ("score", "rating", "value")), None
        )
    return value


def _search(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Names with a value after them, in what is no JSON. The last of each counts."""
    found: dict[str, Any] = {}
    for name in names:
        for match in re.finditer(_VALUE.replace("NAME", re.escape(name)), text, re.IGNORECASE):
            found[name] = match[1]
    return found
