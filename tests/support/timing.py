"""Whether work takes time in proportion to a text, by the processor's time alone: another process beside it changes little."""

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

ENOUGH = (
    0.02 if os.environ.get("WM_ALL_EXAMPLES") else 0.002
)  # seconds that can be compared; more at night: it sees more
STEP = 4  # two doublings at a time
MOST = 2.0 * STEP  # times the time: what is linear takes 4 times as long, the square 16 times, n ** 1.5 8 times
LONGEST = 3.0  # seconds of a single run: far over what any bounded work of ours takes
TRIES = 8


class TooLongError(BaseException):
    """Not an Exception, which the work itself may catch."""


@contextmanager
def interrupted(after: float) -> Any:
    """Raise TooLongError after so many seconds of the processor. Regular expressions heed it; only the main thread can."""

    def stop(*_: object) -> None:
        raise TooLongError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seconds(work: Callable[[Any], object], text: Any) -> float:
    """Of the processor, for one run; infinity if it was interrupted. An Exception that the work ends in does not matter here."""
    start = time.thread_time()
    try:
        with interrupted(LONGEST), suppress(Exception):
            work(text)
    except TooLongError:
        return math.inf
    return time.thread_time() - start


def too_slow(
    work: Callable[[Any], object], make: Callable[[int], Any], first: int = 250, largest: int = 256_000
) -> str | None:
    """How time grows faster than the size does, or None. `work` gets what `make` makes of a size.

    The size grows until the time can be measured; then four times the size may take eight times the time, in the best of a few
    runs of each. What is quick at the largest size passes.
    """
    collects = gc.isenabled()
    gc.disable()  # it would add the time of what others left behind
    try:
        size, short = first, seconds(work, make(first))
        while short < ENOUGH:
            if size >= largest:
                return None
            size *= STEP
            short = seconds(work, make(size))
        small, large, long = make(size), make(STEP * size), math.inf
        for number in range(TRIES):
            if math.isinf(short) or (number > 2 and long > 1.5 * MOST * short):  # no noise is so large
                break
            long = min(long, seconds(work, large))
            short = min(short, seconds(work, small), seconds(work, small))
            if long <= MOST * short:
                return None
    finally:
        if collects:
            gc.enable()
    return f"{short:.4f} s for a size of {size:,}, and {long:.4f} s for {STEP * size:,}"


def repeated(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    """Texts of about a size that are one unit again and again."""
    return lambda size: before + unit * (size // len(unit) + 1) + after
