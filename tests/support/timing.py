"""Comparisons of times, on machines that are busy."""

from collections.abc import Callable


def once_of(check: Callable[[], bool], tries: int = 6) -> bool:
    """Whether a comparison of times holds in one of several tries: noise passes, and work that grows too fast fails in all."""
    return any(check() for _ in range(tries))
