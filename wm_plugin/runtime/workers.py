"""Run tasks that may crash or hang, several at once. A crash or timeout costs one task; the others go on.

A process that hangs is killed. A thread cannot be killed: it is abandoned, and another one takes its place.
"""

import contextlib
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
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
    """Describe a task that an exception ended."""
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:  # its own `__str__`
        text = "without a message"
    return Lost("error", f"{type(error).__name__}: {text}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Start processes that do not see Ctrl-C: a terminal sends it to all of them, and the first one is to answer."""
    _track()  # the tracker's start would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # started processes inherit the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _track() -> None:
    """Start Python's tracker of semaphores, which removes those of a killed run, without its warning that there were some."""
    # not by PYTHONWARNINGS: a process that another thread starts while the environment changes may fail with code 255
    quiet = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(quiet)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(quiet)


class Threads:
    """Worker threads, for functions that mostly wait.

    Args:
        start: makes the function of each worker.
        workers: tasks at once.
        timeout: seconds per task; None for no limit.
    """

    def __init__(self, start: Callable[[], Function], *, workers: int, timeout: float | None) -> None:
        if workers < 1:
            raise UserError(f"workers is {workers}; write a number >= 1")
        self._start, self._workers, self._timeout = start, workers, timeout
        self._idle: list[Function] = []

    def map(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the results of the tasks, in order; a `Lost` for each task without one.

        Raises:
            UserError: `start` or the function raised it.
        """
        results: dict[int, Any] = {}
        waiting = list(enumerate(tasks))[::-1]
        running: dict[Future[Any], int] = {}
        began: dict[Future[Any], float] = {}  # a task's time only runs once its function has been made
        while waiting or running:
            while waiting and len(running) < self._workers:
                number, task = waiting.pop()
                future: Future[Any] = Future()
                running[future] = number
                threading.Thread(target=self._work, args=(future, task, began), daemon=True).start()
            left = self._timeout
            if left is not None:
                now = time.monotonic()
                left = max(0.0, min(began.get(future, now) for future in running) + left - now)
            done, _ = wait(running, left, FIRST_COMPLETED)
            for future in done:
                results[running.pop(future)] = future.result()
            for future in list(running):
                now = time.monotonic()
                if self._timeout is not None and now - began.get(future, now) >= self._timeout:
                    results[running.pop(future)] = Lost("timeout", f"no end within {self._timeout:g} s")
        return [results[number] for number in range(len(tasks))]

    def _work(self, future: "Future[Any]", task: Any, began: "dict[Future[Any], float]") -> None:
        try:
            function = self._idle.pop() if self._idle else self._start()
            began[future] = time.monotonic()
            result = _attempt(function, task)
            self._idle.append(function)
        except BaseException as error:  # from `start`
            result = error if isinstance(error, UserError) else lost_by(error)
        if isinstance(result, UserError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def close(self) -> None:
        """Forget the functions."""
        self._idle = []


class Processes(Threads):
    """Worker processes, each behind a thread that waits for it.

    Args:
        start: called with `arguments` in each process; returns the function that runs the tasks. Both are pickled.
        arguments: for `start`.
        workers: number of processes.
        timeout: seconds per task; None for no limit.
    """

    def __init__(
        self, start: Callable[..., Function], arguments: tuple[Any, ...], *, workers: int, timeout: float | None
    ) -> None:
        super().__init__(self._new, workers=workers, timeout=None)
        self._settings = (start, arguments, timeout)
        self._processes: list[_Process] = []

    def _new(self) -> Function:
        process = _Process(*self._settings)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill the processes."""
        super().close()
        for process in self._processes:
            process.kill()
        self._processes = []


class _Process:
    """A process as a function of a task. One that died is started again for the next task."""

    def __init__(self, start: Callable[..., Function], arguments: tuple[Any, ...], timeout: float | None) -> None:
        self._start, self._arguments, self._timeout = start, arguments, timeout
        self._process: Any = None

    def __call__(self, task: Any) -> Any:
        if self._process is None and isinstance(lost := self._begin(), Lost):
            return lost
        with contextlib.suppress(OSError):  # it died, which `_receive` reports
            self._connection.send(task)
        return self._receive(self._timeout)

    def _begin(self) -> Lost | None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, self._start, self._arguments), daemon=True)
        with uninterrupted():
            process.start()
        self._process = process  # one that did not start has nothing to kill
        there.close()
        started: Lost | None = self._receive(START_SECONDS)
        return started

    def _receive(self, seconds: float | None) -> Any:
        try:
            if not self._connection.poll(seconds):
                self.kill()
                return Lost("timeout", f"no end within {seconds:g} s")
            mistake, result = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(1)
            lost = Lost("died", f"its process ended with code {self._process.exitcode}")
            self.kill()
            return lost
        if mistake:
            raise UserError(mistake)
        return result

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self._connection.close()


def _serve(connection: Any, start: Callable[..., Function], arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(EOFError, KeyboardInterrupt, OSError):  # the parent is gone
        try:
            function = start(*arguments)
        except UserError as error:
            connection.send((str(error), None))
            return
        connection.send(("", None))
        while True:
            result = _attempt(function, connection.recv())
            connection.send((str(result), None) if isinstance(result, UserError) else ("", result))


def _attempt(function: Function, task: Any) -> Any:
    """Return the result, a `Lost`, or a `UserError`, which ends the whole `map`."""
    try:
        return function(task)
    except UserError as error:
        return error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and CancelledError would end a thread, for which `map` would wait
        return lost_by(error)
