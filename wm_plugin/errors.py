"""Errors that are the user's to mend: one line that says what, where, and what to write instead.

The command line prints them without a traceback and exits with 2.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Something in a config, a flag, a dataset or a file that the user can mend. The message is one line."""


class MissingExtraError(UserError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, needs: str, package: str, extra: str) -> None:
        super().__init__(f"{needs} needs {package}: pip install 'wm-plugin[{extra}]'")


def shown(value: Any) -> str:
    """A value that others wrote as a message shows it: one line, cut."""
    try:
        written = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        written = type(value).__name__
    written = " ".join(written.encode(errors="backslashreplace").decode().split())
    return written if len(written) <= 40 else f"{written[:40]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `; did you mean 'x'?`, or the names that exist."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; there is {', '.join(map(repr, names))}" if names else "; there is none"
