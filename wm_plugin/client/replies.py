"""Reads what a server sends: bytes within a limit, and numbers that can be added up and put into tensors."""

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

MAX_TOKENS = 10**9  # of one reply


class LargeError(ValueError):
    """A reply is larger than the limit."""


class EncodingError(ValueError):
    """A reply is damaged, or compressed in a way that was not asked for."""


async def read(response: Any, most: int) -> bytes:
    """Read the body of an aiohttp response that is not decompressed yet, in pieces and no further than the limit.

    Raises:
        LargeError: it is larger than `most` bytes, before or after decompression.
        EncodingError: it cannot be decompressed.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise EncodingError(f"encoded as {encoding[:20]!r}, which was not asked for")
    unzip = zlib.decompressobj(wbits=31) if encoding.endswith("gzip") else None
    body, sent = bytearray(), 0
    async for piece in response.content.iter_any():
        sent += len(piece)
        if unzip is None:
            body += piece
        else:
            try:
                body += unzip.decompress(piece, most + 1 - len(body))
            except zlib.error as error:
                raise EncodingError(f"damaged gzip ({error})") from None
        if max(len(body), sent) > most:
            response.close()  # the rest is not read
            raise LargeError(f"over {most:,} bytes")
    if unzip is not None and sent and not unzip.eof:
        raise EncodingError("damaged gzip (it breaks off)")
    return bytes(body)


def count(value: Any) -> int:
    """Return a number of tokens; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def vector(values: Any) -> "array[float]":
    """Convert a JSON list of numbers to 32-bit floats; beyond their range, infinities."""
    if not isinstance(values, Sequence) or not {int, float}.issuperset(map(type, values)):
        raise TypeError("not a list of numbers")
    try:
        return array("f", values)
    except OverflowError:
        raise ValueError("a number is too large") from None
