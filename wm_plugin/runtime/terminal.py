"""A person at the terminal, or a file of lines in their place: reading lines, and printing what others wrote."""

import io
import re
import sys

from wm_plugin.runtime.command import output


def replace_bad_input() -> None:
    """Let a file that is not UTF-8 be read all the same."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def read_line() -> str | None:
    """Read the next line that is not empty; None at the end. Lines of a file are echoed, so that the transcript is complete."""
    while True:
        if sys.stdin.isatty():
            with output():
                sys.stdout.write("> ")
        line = sys.stdin.readline()
        if not line:
            return None
        if stripped := line.strip():
            if not sys.stdin.isatty():
                say(f"> {stripped}")
            return stripped


def say(text: str) -> None:
    """Print text without control characters; characters that the terminal cannot encode are escaped."""
    text = harmless(text)
    encoding = sys.stdout.encoding or "utf-8"
    with output():
        print(text.encode(encoding, errors="backslashreplace").decode(encoding))


def harmless(text: str) -> str:
    """Write out control characters but tabs and line ends, so that no terminal acts on them."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: ascii(match.group())[1:-1], text)
