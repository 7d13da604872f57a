"""Reads a judge's verdict from its reply. Models write almost-JSON, inside code fences and with text around it.

The verdict is in the **last** `<final_evaluation>` of the reply: a judge that quotes a verdict forged by the prediction writes
its own one after it. If the last one cannot be read, no other one is used. Without a tag, the verdict is the last JSON object of
the reply that has all the requested fields.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

TAG = "final_evaluation"
_OPENS = re.compile(rf"<\s*{TAG}\s*>", re.IGNORECASE)
_CLOSES = re.compile(rf"<\s*/\s*{TAG}\s*>", re.IGNORECASE)
_MAX_LENGTH = 1 << 15  # characters that are read, from the end
_MAX_TRIES = 200  # braces that may begin an object
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NUMBER = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s*(?:/|out of)\s*([0-9]{1,9}))?")
# A name and its value, either bare or as the score inside an object.
_VALUE = r"""(?<!\w)NAME["'“”*`]*\s*[:=](?:\s*\{[^{}]*(?<!\w)score["'“”*`]*\s*[:=])?[\s"'“”*`]*([^\s"'“”*`,;{}]+)"""
_DECODER = json.JSONDecoder()


def fields(reply: str, names: Sequence[str]) -> dict[str, Any]:
    """The values of the names in the verdict, without the names that are missing.

    Keys match in any case and also one level deeper (`{"scores": {...}}`), and a value may be an object with a score
    (`{"format": {"reason": ..., "score": 4}}`).
    """
    text = _TRAILING_COMMA.sub("", _last_block(reply))
    for candidate in reversed(_objects(text)):
        values = _pick(candidate, names)
        if len(values) == len(names):
            return values
    return _search(text, names)


def number(value: Any, low: float, high: float) -> float | None:
    """A score clamped to [low, high], from a number or from text such as `4`, `4/5`, `4 out of 5`; None for anything else."""
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
    reply = reply[-_MAX_LENGTH:]
    for opening in reversed(list(_OPENS.finditer(reply))):
        return _CLOSES.split(reply[opening.end() :], maxsplit=1)[0]
    return reply


def _objects(text: str) -> list[dict[str, Any]]:
    """The outermost JSON objects in a text, in order."""
    objects: list[dict[str, Any]] = []
    place = 0
    for _ in range(_MAX_TRIES):
        place = text.find("{", place)
        if place < 0:
            break
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        objects.append(value)
    return objects


def _pick(value: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The values of the names in an object, or in the first object inside it that has any of them."""
    for candidate in (value, *(inner for inner in value.values() if isinstance(inner, dict))):
        by_name = {key.strip().lower(): inner for key, inner in candidate.items()}
        if values := {name: _score(by_name[name]) for name in names if name in by_name}:
            return values
    return {}


def _score(value: Any) -> Any:
    if isinstance(value, dict):
        return next(
            (inner for key, inner in value.items() if key.strip().lower() in ("score", "rating", "value")), None
        )
    return value


def _search(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Values after the names in a text that is not JSON. The last value of a name counts."""
    values: dict[str, Any] = {}
    for name in names:
        for match in re.finditer(_VALUE.replace("NAME", re.escape(name)), text, re.IGNORECASE):
            values[name] = match[1]
    return values
