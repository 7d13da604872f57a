"""The parser of JSON that others wrote, and the limits of what may be in it.

Models, tools and datasets write this JSON. The text of a file and the arguments of a call pass through `loads`. A value that
becomes a record's field passes through `checked`, so that it comes back from our own files as it went in.
"""

import json
import math
from typing import Any

import orjson
from pydantic_core import from_json

DEEPEST = 200  # levels of a JSON value: pydantic writes no more than 255, and our own come on top

# For `has_long_number`: a digit becomes "0", what may stand before a number outside of strings a space, anything else 1.
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") if byte in b" \t\n\r:,[-" else 1 for byte in range(256))
_SIMPLE = frozenset({str, int, bool, type(None)})


def loads(text: str | bytes) -> Any:
    """`json.loads` in half its time. Python's parser decides on what the fast one refuses, such as half surrogate pairs and NaN.

    Raises:
        UnicodeDecodeError: bytes that are not UTF-8.
        json.JSONDecodeError: not JSON.
        ValueError: an integer of thousands of digits.
        RecursionError: nested too deeply for Python.
    """
    try:
        return from_json(text) if has_long_number(text) else orjson.loads(text)
    except (ValueError, TypeError):
        return json.loads(text if isinstance(text, str) else text.decode())


def has_long_number(text: str | bytes) -> bool:
    """Whether there may be an integer of over 64 bits, of which orjson makes a float: 19 digits in a row."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    # every third byte first: 19 digits in a row hold six of these, and hardly anything else does
    return b"000000" in text[::3].translate(_DIGITS) and b" " + b"0" * 19 in b" " + text.translate(_DIGITS)


def checked(value: Any) -> Any:
    """A JSON value that our files can hold: infinities and NaN become the strings as which they are written.

    Raises:
        ValueError: it is nested too deeply.
    """
    if not value or type(value) in _SIMPLE:
        return value
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        return value
    deep, is_finite = _measure(value)
    if deep:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value if is_finite else finite(value)


def too_deep(value: Any) -> bool:
    """Whether a value has more than `DEEPEST` levels."""
    return _measure(value)[0]


def finite(value: Any) -> Any:
    """A value with "NaN", "Infinity" and "-Infinity" in place of such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def _measure(value: Any) -> tuple[bool, bool]:
    """Whether a value is too deep, and whether all its numbers are finite. It runs once a row: written to be quick."""
    level, depth, all_finite = [value], 0, True
    while level:
        depth += 1
        inner: list[Any] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else (item,)
            if _SIMPLE.issuperset(map(type, children)):
                continue
            for child in children:
                if isinstance(child, dict | list):
                    inner.append(child)
                elif isinstance(child, float):
                    all_finite = all_finite and math.isfinite(child)
        if depth == DEEPEST:
            return bool(inner), all_finite
        level = inner
    return False, all_finite
