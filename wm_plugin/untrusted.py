"""Parse JSON that a policy, a dataset, a server or a file wrote, within bounds. Nothing else in the package parses such JSON.

The bounds hold whatever the caller's stack:

- size: `LARGEST` bytes, or fewer if the caller says so;
- depth: `LEVELS` of objects and lists;
- digits: integers of `DIGITS`, so that every number can become a float.

The last of duplicate keys counts, and NaN, infinities and numbers beyond a float's range are read as Python reads them; with
`strict` all of these are errors. Text that is out of bounds or is not JSON raises a `ValueError` and nothing else. Time and
memory are linear in the text.

The module also checks JSON values that files are to hold, reads HTML's escapes and makes texts that can be encoded.
"""

import html
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

LARGEST = 1 << 26  # bytes of a text
LEVELS = 250  # of a text; Python's recursion ends at 1,000
DEEPEST = 200  # levels of a JSON value in a record, which has levels of its own: pydantic writes 255
DIGITS = 308  # of an integer; a float ends at 1.8e308

_TO_ZERO = bytes(ord("0") if byte in b"0123456789" else 1 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (DIGITS + 1)
_LONG_REFERENCE = re.compile(r"&#([0-9]{8,})")
_SIMPLE = frozenset({str, int, bool, type(None)})


class BoundsError(ValueError):
    """A text is larger, deeper or has longer integers than is parsed."""


def loads(text: str | bytes, *, strict: bool = False, largest: int = LARGEST, levels: int = LEVELS) -> Any:
    """Parse JSON in half the time of `json.loads`. Python's parser decides on what the fast one refuses.

    Args:
        strict: refuse duplicate keys, NaN, infinities and numbers that a float cannot hold. Use it for what is scored.
        largest: bytes of the text, or characters.
        levels: of objects and lists.

    Raises:
        BoundsError: the text is out of bounds.
        UnicodeDecodeError: the bytes are not UTF-8.
        ValueError: the text is not JSON (`json.JSONDecodeError`), or is not strict.
    """
    if len(text) > largest:
        raise BoundsError(f"larger than {largest:,} bytes")
    try:
        value = _parsed(text, strict)
    except RecursionError:
        raise BoundsError(f"nested more than {levels} levels deep") from None
    brackets: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) > levels and deeper(value, levels):
        raise BoundsError(f"nested more than {levels} levels deep")
    return value


def _parsed(text: str | bytes, strict: bool) -> Any:
    if not strict:
        encoded = text.encode(errors="replace") if isinstance(text, str) else text
        if _TOO_MANY_DIGITS not in encoded.translate(_TO_ZERO):
            try:
                return from_json(text)
            except (ValueError, TypeError):  # TypeError: half a surrogate pair
                pass
    plain = text if isinstance(text, str) else text.decode()
    if not strict:
        return json.loads(plain, parse_int=_integer)
    return json.loads(
        plain, parse_int=_integer, parse_float=_finite, parse_constant=_refuse, object_pairs_hook=_without_duplicates
    )


def deeper(value: Any, levels: int = DEEPEST) -> bool:
    """Tell whether a value has more than `levels` levels."""
    return _measure(value, levels)[0]


def checked(value: Any) -> Any:
    """Return a JSON value that files can hold: infinities and NaN become the strings as which they are written.

    Raises:
        ValueError: it is nested too deeply.
    """
    if not value or type(value) in _SIMPLE:
        return value
    if type(value) is dict and _SIMPLE.issuperset(map(type, value.values())):
        return value
    deep, is_finite = _measure(value, DEEPEST)
    if deep:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    return value if is_finite else finite(value)


def _measure(value: Any, levels: int) -> tuple[bool, bool]:
    """Tell whether a value has more levels, and whether all its numbers are finite. It runs once a row: written to be quick."""
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
        if depth == levels:
            return bool(inner), all_finite
        level = inner
    return False, all_finite


def finite(value: Any) -> Any:
    """Return a JSON value with "NaN", "Infinity" and "-Infinity" in place of such numbers."""
    return _with_each(value, lambda one: json.dumps(one) if isinstance(one, float) and not math.isfinite(one) else one)


def without_nan(value: Any) -> Any:
    """Return a result with None in place of numbers that JSON does not have."""
    return _with_each(value, lambda one: None if isinstance(one, float) and not math.isfinite(one) else one)


def encodable(value: Any) -> Any:
    """Return a JSON value with lone surrogates replaced, which JSON can write and no tokenizer accepts."""
    if isinstance(value, str) and value.isascii():
        return value
    return _with_each(value, lambda one: one.encode(errors="replace").decode() if isinstance(one, str) else one)


def _with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {change(key): _with_each(item, change) for key, item in value.items()}
    return [_with_each(item, change) for item in value] if isinstance(value, list | tuple) else change(value)


def number(value: Any) -> float | None:
    """Return a JSON number as a finite float; None for anything else, also for booleans and integers that are too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def unescape(text: str) -> str:
    """Do what `html.unescape` does, which fails on a number of more digits than Python turns into an integer."""
    return html.unescape(_LONG_REFERENCE.sub(lambda match: "&#" + (match[1].lstrip("0")[:8] or "0"), text))


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > DIGITS:
        raise BoundsError(f"an integer of more than {DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key appears twice")
    return values
