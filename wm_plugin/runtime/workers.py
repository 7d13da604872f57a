"""Runs tasks that may crash or hang in several processes or threads. A crash or timeout costs one task; the others go on.

A process that hangs is killed. A thread cannot be killed: it is abandoned, and another one takes its place.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from wm_plugin.errors import UserError

Function = Callable[[Any], Any]
START_SECONDS = 120.0  # the time limit for starting a process


@dataclass(frozen=True)
class Lost:
    """A task without a result. `kind` is short, for counting; `reason` is one line."""

    kind: str
    reason: str


def lost_by(error: BaseException) -> Lost:
    """A task that an exception ended."""
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:  # its own `__str__`
        text = "without a message"
    return Lost("error", f"{type(error).__name__}: {text}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Processes that are started in here never hear of Ctrl-C: a terminal sends it to all, and the first one is to answer."""
    _track()  # the tracker's start would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # started processes have the same
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _track() -> None:
    """Start Python's tracker of semaphores, which removes those of a killed run, without its warning that there were some."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, "ignore:resource_tracker:UserWarning"]))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


class Processes:
    """Worker processes.

    Args:
        start: called with `arguments` in each process; returns the function that runs the tasks. Both are pickled.
        arguments: for `start`.
        workers: number of processes.
        timeout: seconds per task; None for no limit.
    """

    def __init__(
        self, start: Callable[..., Function], arguments: tuple[Any, ...], *, workers: int, timeout: float | None
    ) -> None:
        if workers < 1:
            raise UserError(f"workers is {workers}; write a number >= 1")
        self._of_each = (start, arguments, timeout)
        self._count = workers
        self._processes: list[_Process] = []

    def map(self, tasks: Sequence[Any]) -> list[Any]:
        """The results of the tasks, in order; a `Lost` for each task without one.

        Raises:
            UserError: `start` or the function raised it.
        """
        results: dict[int, Any] = {}
        waiting = list(enumerate(tasks))[::-1]
        while len(self._processes) < min(self._count, len(waiting)):
            self._processes.append(_Process(*self._of_each))
        while len(results) < len(tasks):
            for process in self._processes:
                if process.task is None and waiting:
                    process.give(*waiting.pop())
            busy = [process for process in self._processes if process.task is not None]
            first = min(process.deadline for process in busy)
            left = None if first == float("inf") else max(0.0, first - time.monotonic())
            multiprocessing.connection.wait([process.connection for process in busy], left)
            for process in busy:
                if (finished := process.result()) is None:
                    continue
                number, result = finished
                results[number] = result
                if not process.usable:
                    process.kill()
                    self._processes[self._processes.index(process)] = _Process(*self._of_each)
        return [results[number] for number in range(len(tasks))]

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()
        self._processes = []


class Threads:
    """Worker threads with the interface of `Processes`, for functions that mostly wait. `start()` makes each function."""

    def __init__(self, start: Callable[[], Function], *, workers: int, timeout: float | None) -> None:
        if workers < 1:
            raise UserError(f"workers is {workers}; write a number >= 1")
        self._start, self._count, self._timeout = start, workers, timeout

    def map(self, tasks: Sequence[Any]) -> list[Any]:
        """The results of the tasks, in order; a `Lost` for each task without one.

        Raises:
            UserError: `start` or the function raised it.
        """
        results: dict[int, Any] = {}
        waiting: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for item in enumerate(tasks):
            waiting.put(item)
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        began: dict[int, float] = {}

        def work() -> None:
            function = self._start()
            while True:
                try:
                    number, task = waiting.get_nowait()
                except queue.Empty:
                    return
                began[number] = time.monotonic()
                result = _attempt(function, task)
                if number in results:  # the task timed out, and another thread took this one's place
                    return
                done.put((number, result))

        def begin() -> None:
            threading.Thread(target=_guarded, args=(work, done), daemon=True).start()

        for _ in range(min(self._count, len(tasks))):
            begin()
        while len(results) < len(tasks):
            with contextlib.suppress(queue.Empty):
                number, result = done.get(timeout=None if self._timeout is None else min(1.0, self._timeout))
                if isinstance(result, UserError):
                    while not waiting.empty():  # the other threads end after their current task
                        with contextlib.suppress(queue.Empty):
                            waiting.get_nowait()
                    raise result
                results.setdefault(number, result)
            for number, since in list(began.items()):
                if self._timeout is not None and number not in results and time.monotonic() - since > self._timeout:
                    results[number] = Lost("timeout", f"no end within {self._timeout:g} s")
                    begin()
        return [results[number] for number in range(len(tasks))]

    def close(self) -> None:
        """Nothing to do: between calls there are no threads, except abandoned ones."""


class _Process:
    """A process and its current task."""

    def __init__(self, start: Callable[..., Function], arguments: tuple[Any, ...], timeout: float | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, start, arguments), daemon=True)
        with uninterrupted():
            self._process.start()
        there.close()
        self._timeout = timeout
        self._ready = False  # a task's time only runs once the process has started
        self.task: int | None = None
        self.usable = True
        self.deadline = float("inf")

    def give(self, number: int, task: Any) -> None:
        self.task = number
        seconds = self._timeout if self._ready else max(START_SECONDS, self._timeout or 0)
        self.deadline = float("inf") if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(OSError):  # it died, which `result` reports
            self.connection.send(task)

    def result(self) -> tuple[int, Any] | None:
        """The task's number and its result; None while there is none."""
        number, value = self.task, None
        assert number is not None
        if self.connection.poll():
            try:
                kind, value = self.connection.recv()
            except (EOFError, OSError):
                self._process.join(1)
                self.usable = False
                return number, Lost("died", f"its process ended with code {self._process.exitcode}")
            if kind == "ready":
                self._ready = True
                self.deadline = float("inf") if self._timeout is None else time.monotonic() + self._timeout
                return None
            if kind == "user error":
                raise UserError(value)
        elif time.monotonic() >= self.deadline:
            self.usable = False
            limit = self._timeout if self._ready else START_SECONDS
            return number, Lost("timeout", f"no end within {limit:g} s")
        else:
            return None
        self.task = None
        return number, value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Any, start: Callable[..., Function], arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(EOFError, KeyboardInterrupt, OSError):  # the parent is gone
        try:
            function = start(*arguments)
        except UserError as error:
            connection.send(("user error", str(error)))
            return
        connection.send(("ready", None))
        while True:
            result = _attempt(function, connection.recv())
            connection.send(("user error", str(result)) if isinstance(result, UserError) else ("result", result))


def _attempt(function: Function, task: Any) -> Any:
    """The result, a `Lost`, or a `UserError`, which ends the whole `map`."""
    try:
        return function(task)
    except UserError as error:
        return error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and CancelledError would end a thread, for which `map` would wait
        return lost_by(error)


def _guarded(work: Callable[[], None], done: "queue.SimpleQueue[tuple[int, Any]]") -> None:
    try:
        work()
    except UserError as error:
        done.put((-1, error))
