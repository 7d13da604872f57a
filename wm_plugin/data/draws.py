"""Random numbers that depend on a text alone: the same in every run, whatever the order of the files."""

import hashlib


def whole_number(text: str) -> int:
    """Return a number from 0 to 2**64 - 1."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")


def uniform(text: str) -> float:
    """Return a number in [0, 1)."""
    return whole_number(text) / 2**64
