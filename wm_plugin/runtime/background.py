"""One event loop per process, in a background thread: for any thread, and for code inside a running event loop of the host."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _Thread:
    """A process's background event loop and its thread. It starts on first use, and again after a fork."""

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


def start(work: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start `work` in the background loop, and do not wait for it."""
    return asyncio.run_coroutine_threadsafe(work, _thread.loop())


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the background loop and wait for its result. The caller may itself be inside a running event loop."""
    future = start(work)
    try:
        return future.result()
    except BaseException:  # an interrupt must not leave the work running
        future.cancel()
        raise


async def run(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` in the background loop without blocking the caller's loop."""
    return await asyncio.wrap_future(start(work))


def finish(work: Coroutine[Any, Any, Any]) -> None:
    """Run clean-up `work` in the background loop, and wait at most a second for it."""
    if not _thread.is_running():
        work.close()
        return
    future = asyncio.run_coroutine_threadsafe(work, _thread.loop())
    if threading.current_thread() is not _thread.thread:  # it would wait for itself
        with contextlib.suppress(Exception):
            future.result(timeout=1)
