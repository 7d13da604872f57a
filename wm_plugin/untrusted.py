"""JSON that others wrote - a policy, a dataset, a server, a file - is parsed here, within bounds, and nowhere else.

So are the escapes of HTML, and texts become ones that can be encoded.

The bounds, which hold whatever the caller's stack and whichever parser is used:

- size: `LARGEST` bytes, or fewer if the caller says so;
- depth: `LEVELS` of objects and lists, counted before anything is parsed;
- values: `VALUES` commas and beginnings of objects and lists, or fewer if the caller says so: an empty list takes 3 bytes of a
  text and 64 of memory;
- digits: integers of `DIGITS`, so that every number that is parsed can become a float;
- duplicate keys: the last one counts, as everywhere in Python; with `strict` they are an error;
- NaN, infinities and numbers beyond a float's range: as Python reads them; with `strict` they are an error.

What is out of bounds or no JSON is a `ValueError`, never another error. Time and memory are linear in the text.
"""

import html
import json
import math
import re
from array import array
from itertools import accumulate
from typing import Any

import orjson
from pydantic_core import from_json

LARGEST = 1 << 26  # bytes of a text
LEVELS = 250  # of a text; Python's recursion ends at 1,000
VALUES = 2_000_000  # of a text
DIGITS = 308  # of an integer; a float ends at 1.8e308

# For `_has_digits`: a digit becomes "0", what may stand before a number outside of strings a space, anything else 1.
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") if byte in b" \t\n\r:,[-" else 1 for byte in range(256))
_PIECE = 1 << 20  # bytes that are split at once
_NOT_VALUES = bytes(byte for byte in range(256) if byte not in b'[{,"')
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{},"')
_STEPS = bytes(1 if byte in b"[{" else 255 for byte in range(256))  # +1 and -1 as signed bytes
_STRUCTURE = re.compile(rb'[\[\]{}"\\]')
_LONG_REFERENCE = re.compile(r"&#([0-9]{8,})")
_SIMPLE = frozenset({str, int, bool, type(None)})


class BoundsError(ValueError):
    """A text that is larger, deeper, of more values or of longer integers than is parsed."""


def loads(
    text: str | bytes, *, strict: bool = False, largest: int = LARGEST, levels: int = LEVELS, values: int = VALUES
) -> Any:
    """The JSON value of a text, in half the time of `json.loads`. Python's parser decides on what the fast one refuses.

    Args:
        strict: refuse duplicate keys, NaN, infinities and numbers that a float cannot hold. For what is scored.
        largest: bytes of the text, or characters.
        levels: of objects and lists.
        values: commas, objects and lists.

    Raises:
        BoundsError: out of the bounds that the module's docstring lists.
        UnicodeDecodeError: bytes that are not UTF-8.
        ValueError: not JSON (`json.JSONDecodeError`), or not strict.
    """
    if len(text) > largest:
        raise BoundsError(f"larger than {largest:,} bytes")
    _check_values(text, values)
    _check_depth(text, levels)
    try:
        if not strict:
            fast = _fast(text)
            if fast is not _REFUSED:
                return fast
        return _slow(text if isinstance(text, str) else text.decode(), strict)
    except RecursionError:  # the caller's stack was nearly full
        raise BoundsError("nested too deeply") from None


def _check_depth(text: str | bytes, levels: int) -> None:
    opening: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if text.count(opening[0]) + text.count(opening[1]) <= levels:
        return
    if not Nesting(levels).follow(text.encode(errors="replace") if isinstance(text, str) else text):
        raise BoundsError(f"nested more than {levels} levels deep")


def _check_values(text: str | bytes, values: int) -> None:
    signs: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if len(text) <= values or sum(map(text.count, signs)) <= values:
        return
    data = text.encode(errors="replace") if isinstance(text, str) else text  # some of the signs may be in strings
    data = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NOT_VALUES)
    count, in_string = 0, False
    for start in range(0, len(data), _PIECE):
        pieces = data[start : start + _PIECE].split(b'"')
        count += sum(map(len, pieces[in_string::2]))
        in_string ^= len(pieces) % 2 == 0
        if count > values:
            raise BoundsError(f"more than {values:,} values")


class Nesting:
    """Follows the levels of a JSON text that comes in pieces, without parsing it, and leaves out what is deeper than `levels`.

    It is for parsers of streams, whose own memory grows with the depth, and which cannot go on after an error.

    Attributes:
        too_deep: whether anything was left out so far. Then the text still has one level more than it may: an empty object or
            list, so that `deeper` tells in which value it was.
        lowest: the lowest level of the last piece, if it has objects or lists that begin or end; else None.
        values: the commas of the last piece, and its objects and lists that begin.
    """

    def __init__(self, levels: int = LEVELS) -> None:
        self.levels = levels
        self.too_deep = False
        self.lowest: int | None = None
        self.values = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next byte is

    def cut(self, piece: bytes) -> bytes:
        """The next piece, without what is too deep."""
        return piece if self.follow(piece) else self._without_deep(piece)

    def follow(self, piece: bytes) -> bool:
        """Goes on to the next piece, unless there is something too deep in it."""
        rest, escaped = (piece[1:], False) if self._escaped and piece else (piece, self._escaped)
        if b"\\" in rest:
            rest = rest.replace(b"\\\\", b"")
            escaped = rest.endswith(b"\\")
            rest = rest.replace(b'\\"', b"")
        pieces = rest.translate(None, _NOT_STRUCTURE).split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])  # of strings
        self.values = sum(map(outside.count, (b",", b"[", b"{")))
        steps = array("b", outside.translate(_STEPS, b","))
        if self._depth > self.levels or (steps and self._depth + max(accumulate(steps)) > self.levels):
            self.too_deep = True
            return False
        self.lowest = self._depth + min(0, min(accumulate(steps))) if steps else None
        self._escaped = escaped
        self._in_string ^= len(pieces) % 2 == 0
        self._depth = max(self._depth + sum(steps), 0)
        return True

    def _without_deep(self, piece: bytes) -> bytes:
        """Byte by byte: the first level that is too deep stays, and is empty."""
        kept: list[bytes] = []
        skipped = 0 if self._escaped else -1  # the place of a byte that is escaped
        start: int | None = 0 if self._depth <= self.levels else None
        depth, in_string, deepest = self._depth, self._in_string, self.levels + 1
        self.lowest = depth
        for match in _STRUCTURE.finditer(piece):
            place, byte = match.start(), match[0]
            if place == skipped:
                continue
            if in_string:
                if byte == b"\\":
                    skipped = place + 1
                elif byte == b'"':
                    in_string = False
            elif byte == b'"':
                in_string = True
            elif byte in b"[{":
                depth += 1
                if depth == deepest and start is not None:
                    kept.append(piece[start : place + 1])
                    start = None
            elif byte in b"]}":
                if depth == deepest:
                    start = place
                depth = max(depth - 1, 0)
                self.lowest = min(self.lowest, depth)
        self._depth, self._in_string, self._escaped = depth, in_string, skipped == len(piece)
        if start is not None:
            kept.append(piece[start:])
        return b"".join(kept)


def deeper(value: Any, levels: int) -> bool:
    """Whether a value has more than `levels` levels."""
    return measure(value, levels)[0]


def measure(value: Any, levels: int) -> tuple[bool, bool]:
    """Whether a value has more levels, and whether all its numbers are finite. It runs once a row: written to be quick."""
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


def number(value: Any) -> float | None:
    """A JSON number as a finite float; None for anything else: a boolean, a text, NaN, an infinity, an integer too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def unescape(text: str) -> str:
    """`html.unescape`, which fails on a number of more digits than Python turns into an integer."""
    return html.unescape(_LONG_REFERENCE.sub(lambda match: "&#" + (match[1].lstrip("0")[:8] or "0"), text))


def encodable(value: Any) -> Any:
    """A JSON value with lone surrogates replaced, which JSON can write and no tokenizer accepts."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    return [encodable(item) for item in value] if isinstance(value, list) else value


_REFUSED = object()


def _fast(text: str | bytes) -> Any:
    try:
        if not _has_digits(text, 19):  # over 64 bits orjson makes a float of it
            return orjson.loads(text)
        if not _has_digits(text, DIGITS + 1):
            return from_json(text)
    except (ValueError, TypeError):
        pass
    return _REFUSED


def _slow(text: str, strict: bool) -> Any:
    if not strict:
        return json.loads(text, parse_int=_integer)
    return json.loads(
        text, parse_int=_integer, parse_float=_finite, parse_constant=_refuse, object_pairs_hook=_without_duplicates
    )


def _has_digits(text: str | bytes, count: int) -> bool:
    """Whether there may be an integer of `count` digits, at least 19; text in a string may look like one."""
    if isinstance(text, str):
        text = text.encode(errors="replace")
    # every third byte first: 19 digits in a row hold six of these, and hardly anything else does
    return b"000000" in text[::3].translate(_DIGITS) and b" " + b"0" * count in b" " + text.translate(_DIGITS)


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
