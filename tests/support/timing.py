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

# Seconds that can be compared; more at night, because they show more.
ENOUGH = 0.02 if os.environ.get("WM_ALL_EXAMPLES") else 0.002
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
    """Of the processor, for one run; infinity if it was interrupted. To refuse a text is work, too."""
    start = time.thread_time()
    try:
        with interrupted(LONGEST), suppress(ValueError):
            work(text)
    except TooLongError:
        return math.inf
    return time.thread_time() - start


def too_slow(
    work: Callable[[Any], object],
    make: Callable[[int], Any],
    first: int = 250,
    largest: int = 256_000,
    ready: Callable[[], object] = lambda: None,
) -> str | None:
    """How time grows faster than the size does, or None. `work` gets what `make` makes of a size; `ready` is not timed.

    The size grows until the time can be measured; then four times the size may take eight times the time, in the best of a few
    runs of each. A step, where something begins at a size, passes: what grows too fast does so at the next size again. What is
    quick at the largest size passes too.
    """

    def once(text: Any) -> float:
        ready()
        return seconds(work, text)

    collects = gc.isenabled()
    gc.disable()  # it would add the time of what others left behind
    try:
        size = first
        while (short := once(make(size))) < ENOUGH:
            if size >= largest:
                return None
            size *= STEP
        return _grows(once, make, size, short) and _grows(once, make, STEP * size, math.inf)
    finally:
        if collects:
            gc.enable()


def _grows(once: Callable[[Any], float], make: Callable[[int], Any], size: int, short: float) -> str | None:
    """How time grows too fast from one size to the next."""
    small, large, long = make(size), make(STEP * size), math.inf
    for number in range(TRIES):
        long = min(long, once(large))
        short = min(short, once(small), once(small))
        if long <= MOST * short < math.inf:
            return None
        if math.isinf(short) or (number > 0 and long > 1.5 * MOST * short):  # no noise is so large
            break
    return f"{short:.4f} s for a size of {size:,}, and {long:.4f} s for {STEP * size:,}"


def repeated(unit: str, before: str = "", after: str = "") -> Callable[[int], str]:
    """Texts of about a size that are one unit again and again."""
    return lambda size: before + unit * (size // len(unit) + 1) + after
