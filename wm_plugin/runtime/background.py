"""An event loop in a thread of its own, for whoever asks: many threads, and code inside a running loop of the host's."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Thread:
    """The event loop of a process, in a thread of its own; made when first asked for, and again after a fork."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or not self.is_running():
                self._loop = asyncio.new_event_loop()
                self.thread = threading.Thread(target=self._loop.run_forever, name="wm-server", daemon=True)
                self.thread.start()
            return self._loop


_thread = _Thread()


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the background loop, and wait: from any thread, inside a running loop of the caller's or not."""
    future = asyncio.run_coroutine_threadsafe(work, _thread.loop())
    try:
        return future.result()
    except BaseException:  # an interrupt does not leave calls behind
        future.cancel()
        raise


async def run(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` in the background loop, while the caller's goes on."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _thread.loop()))


def finish(work: Coroutine[Any, Any, Any]) -> None:
    """Let `work` end in the background loop, and wait a second for it at most: for what is closed on the way out."""
    if not _thread.is_running():
        work.close()
        return
    future = asyncio.run_coroutine_threadsafe(work, _thread.loop())
    if threading.current_thread() is not _thread.thread:  # which would wait for itself
        with contextlib.suppress(Exception):
            future.result(timeout=1)
