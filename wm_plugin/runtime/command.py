"""Runs a command: a user's mistake, an interrupt and what the system refuses are one line and an exit code."""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wm_plugin.errors import UserError
from wm_plugin.runtime.secrets import redact


def exit_code(run: Callable[[], int], name: str) -> int:
    """Return what `run` returns, or the code of the error that ended it: 2 bad input, 130 interrupted, 1 what the system refused.

    The error is a line on standard error that begins with the command's name. Errors of other kinds are ours, and keep their
    traceback.
    """
    _open_closed_streams()
    try:
        return run()
    except UserError as error:
        say(f"{name}: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"{name}: interrupted")
        return 130
    except OSError as error:  # a full disk, a folder that may not be written to, an output that was closed
        if error.errno is None:
            raise  # not the system's
        where = f"{error.filename}: " if error.filename is not None else ""
        say(f"{name}: {where}{error.strerror or error}")
        return 1


@contextmanager
def output() -> Iterator[None]:
    """Let a block print, and nothing else: if the reader closes the pipe, as `head` does, the command ends quietly with 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        if error.errno == errno.EBADF:
            raise OSError(errno.EBADF, "standard output is closed") from None
        raise


def _open_closed_streams() -> None:
    """Open closed streams on nothing: the next file that is opened would get their number, and what is printed."""
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)  # the lowest one that is free; printing to stdout fails, as it should
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def say(line: str) -> None:
    """Print a message on standard error: one line, without keys."""
    try:
        print(_one_line(redact(line)), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _discard(sys.stderr)


def _discard(stream: object) -> None:
    """Let what the stream holds go nowhere: Python writes it at its end, and reports the same error once more."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[attr-defined]


def _one_line(text: str) -> str:
    """Write a message in one line, with control characters escaped: names in it may come from anywhere."""
    return re.sub(r"[^ -~\u00a0-\U0010ffff]", lambda match: ascii(match.group())[1:-1], " ".join(text.split()))
