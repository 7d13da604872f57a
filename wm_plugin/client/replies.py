"""Reads what a server sends: bytes within a limit, and numbers that can be added up and put into tensors."""

from array import array
from collections.abc import Sequence
from typing import Any

MAX_TOKENS = 10**9  # of one reply


async def read(response: Any, most: int) -> bytes | None:
    """Read the body of an aiohttp response in pieces; None if it has more than `most` bytes."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            response.close()  # the rest is not read
            return None
    return bytes(body)


def count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def vector(values: Any) -> "array[float]":
    """Convert a JSON list of numbers to 32-bit floats; beyond their range, infinities.

    Raises:
        TypeError, ValueError: it is no such list, or one of its numbers is beyond any float.
    """
    if not isinstance(values, Sequence) or not {int, float}.issuperset(map(type, values)):
        raise TypeError("not a list of numbers")
    try:
        return array("f", values)
    except OverflowError:
        raise ValueError("a number is too large") from None
