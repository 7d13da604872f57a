"""A world's engine in a process of its own, so that one that hangs, crashes or grows costs an episode and not the run.

An engine is a class whose methods take and return JSON values. Its process is a plain `python -c`, neither forked nor made by
multiprocessing: it works in daemonic workers, in Ray's, in threads and in scripts without a main guard, and inherits nothing of
the host's torch. They talk over a socket of their own; the engine's standard input and outputs are closed.

No process stays behind. The host kills and reaps it, with all that it started, on `close`, when the object goes and when the
interpreter exits. A host that is killed itself closes the socket by that, and the engine's process ends.
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

from wm_plugin.errors import UserError
from wm_plugin.registry import import_object

_GOODBYE = 1.0  # seconds that an engine has to end by itself
_START = "import sys; from wm_plugin.environments.kit.process import serve; serve(int(sys.argv[1]), sys.argv[2])"


class LostError(RuntimeError):
    """The engine's process died, hung, or raised what it should not have. It is gone; the next call starts another."""


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
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    def call(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """What the engine's method returns.

        Raises:
            UserError: the engine raised one, with the same line; the process goes on.
            LostError: there will be no answer. The process and all that it started are gone.
        """
        if self._process is None or self._host != os.getpid():  # a fork's copy is not ours to speak with
            self._launch()
        limit = self.timeout if timeout is None else timeout
        try:
            self._channel.sendall(json.dumps([method, arguments]).encode() + b"\n")
            answer = json.loads(self._receive(time.monotonic() + limit))
        except TimeoutError:
            self.close()
            raise LostError(f"no answer within {limit:g} s") from None
        except (OSError, ValueError) as error:
            code = self.close()
            raise LostError(f"the process ended with code {code}" if code is not None else str(error)) from None
        if "refused" in answer:
            raise UserError(answer["refused"])
        if "error" in answer:
            self.close()
            raise LostError(answer["error"])
        return answer["value"]

    def close(self) -> int | None:
        """End the process and all that it started; returns the exit code that it had ended with by itself, if it had."""
        code = self._process.poll() if self._process is not None else None
        if self._end is not None:
            self._end()
        self._process = self._end = None
        return code

    def _launch(self) -> None:
        self.close()
        self._channel, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the host's, wherever it got it from
            "PYTHONHASHSEED": "0",  # libraries that walk over sets
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",  # a buffer a thread
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), self.engine],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the host's, and one kill reaches all that the engine started
            )
        self._host = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._channel, self._host)

    def _receive(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            parts.append(self._channel.recv(1 << 16))
            if not parts[-1]:
                raise ConnectionError("the process ended")
        return b"".join(parts)


def _end(process: subprocess.Popen[bytes], channel: socket.socket, host: int) -> None:
    channel.close()
    if os.getpid() != host:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GOODBYE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # a group lives on while anything in it does
    process.wait()


def serve(descriptor: int, path: str) -> None:
    """The engine's side: answers calls until the socket closes, then calls the engine's `close`, if it has one."""
    atexit.register(os.killpg, 0, signal.SIGKILL)  # registered first, it comes last: what the engine started and left
    channel = socket.socket(fileno=descriptor)
    threading.Thread(target=_watch, args=(channel,), daemon=True).start()
    engine: Any = None
    with contextlib.suppress(OSError), channel.makefile("rb") as requests:
        for request in requests:
            method, arguments = json.loads(request)
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
    hangup.register(channel, 0)  # a hang-up is always told; what can be read is not ours
    hangup.poll()
    time.sleep(_GOODBYE)
    os.killpg(0, signal.SIGKILL)  # the engine is busy and nobody waits for it
