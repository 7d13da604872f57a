"""An environment's engine in a process of its own, so that an engine that hangs, crashes or grows costs one episode, not the run.

An engine is a class whose methods take and return JSON values. Its process is a plain `python -c`, neither forked nor made by
multiprocessing: it works in daemonic workers, in Ray's workers, in threads and in scripts without a main guard, and does not
inherit the host's torch. Host and engine talk over a socket; the engine's standard input and outputs are closed.

No process stays behind. The host kills and reaps it, with all that it started, on `close`, when the object is collected and when
the interpreter exits. If the host itself is killed, its end of the socket closes, and the engine's process ends.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.registry import import_object
from wm_plugin.untrusted import LARGEST, loads

_GOODBYE = 1.0  # seconds that an engine has to end on its own
_START = "import sys; from wm_plugin.worlds.kit.process import serve; serve(int(sys.argv[1]), sys.argv[2])"


class LostError(RuntimeError):
    """The engine's process died, hung, or raised an error that is no UserError. It is gone; the next call starts a new one."""


class EngineProcess:
    """An engine, started by the first call.

    Args:
        engine: the class as a dotted path, `package.module:Class`; it is called without arguments.
        timeout: seconds that a call may take, the engine's start included.
    """

    def __init__(self, engine: str, *, timeout: float = 60.0) -> None:
        self.engine, self.timeout = engine, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self._host = 0

    @property
    def pid(self) -> int | None:
        """The id of the engine's process; None before the first call and after `close`."""
        return self._process.pid if self._process is not None else None

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a method of the engine and return its result.

        Raises:
            UserError: the engine raised it, or an argument is no JSON value; the process goes on.
            LostError: there was no answer. The process and all that it started are gone.
        """
        request = _request(method, arguments)
        if self._process is None or self._host != os.getpid():  # after a fork the socket belongs to the parent
            self._launch()
        limit = self.timeout if timeout is None else timeout
        try:
            self._channel.sendall(request)
            answer = loads(self._receive(time.monotonic() + limit))
        except TimeoutError:
            self.close()
            raise LostError(f"no answer within {limit:g} s") from None
        except (OSError, ValueError) as error:
            code = self.close()
            raise LostError(f"the process ended with code {code}" if code is not None else str(error)) from None
        if not isinstance(answer, dict) or not answer.keys() & {"refused", "error", "value"}:
            self.close()
            raise LostError("the answer is not an engine's")
        if "refused" in answer:
            raise UserError(answer["refused"])
        if "error" in answer:
            self.close()
            raise LostError(answer["error"])
        return answer["value"]

    def close(self) -> int | None:
        """End the process and all that it started, and return its exit code if it had already ended."""
        code = self._process.poll() if self._process is not None else None
        if self._end is not None:
            self._end()
        self._process = self._end = None
        return code

    def _launch(self) -> None:
        self.close()
        self._channel, engines_end = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # of the host, whichever way it was set
            "PYTHONHASHSEED": "0",  # some libraries iterate over sets
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",  # it keeps a buffer for each thread
        }
        with engines_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(engines_end.fileno()), self.engine],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[engines_end.fileno()],
                start_new_session=True,  # Ctrl-C goes to the host alone, and one kill reaches all that the engine started
            )
        self._host = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._channel, self._host)

    def _receive(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not parts or not parts[-1].endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            parts.append(self._channel.recv(1 << 16))
            if not parts[-1]:
                raise ConnectionError("the process ended")
            size += len(parts[-1])
            if size > LARGEST:
                raise ConnectionError(f"an answer of more than {LARGEST:,} bytes")
        return b"".join(parts)


def _request(method: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        request = json.dumps([method, arguments]).encode()
        loads(request)  # as the engine does, which has no way to refuse it
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"a world takes plain numbers and texts, not {shown(arguments)}") from None
    return request + b"\n"


def _end(process: subprocess.Popen[bytes], channel: socket.socket, host: int) -> None:
    channel.close()
    if os.getpid() != host:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GOODBYE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the group may outlive its first process
    process.wait()


def serve(descriptor: int, path: str) -> None:
    """Answer calls on the engine's end of the socket until it closes, then call the engine's `close`, if it has one."""
    # registered first, so it runs last: kills what the engine left running
    atexit.register(os.killpg, 0, signal.SIGKILL)
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_watch, args=(channel,), daemon=True).start()
    engine: Any = None
    with contextlib.suppress(OSError), channel.makefile("rb") as requests:
        for request in requests:
            method, arguments = loads(request)
            try:
                if engine is None:
                    engine = import_object(path, field="engine")()
                answer = {"value": getattr(engine, method)(*arguments)}
            except UserError as error:
                answer = {"refused": str(error)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            channel.sendall(json.dumps(answer).encode() + b"\n")
    if hasattr(engine, "close"):
        engine.close()


def _watch(channel: socket.socket) -> None:
    hangup = select.poll()
    hangup.register(channel, 0)  # reports hang-ups only: the main thread reads
    hangup.poll()
    time.sleep(_GOODBYE)
    os.killpg(0, signal.SIGKILL)  # the engine is still busy, and its host has gone
