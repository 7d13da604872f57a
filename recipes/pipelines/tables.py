"""Tables of our own runs, as JSON for programs and as Markdown for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import write_text
from wm_plugin.errors import UserError
from wm_plugin.runtime.command import output


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    lines.insert(1, "|---" * len(head) + "|")
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def cell(value: float | None, low: float | None, high: float | None, *, signed: bool = False) -> str:
    """Write a value with its interval in brackets; a dash if it is missing."""
    if value is None:
        return "–"
    form = "+.3f" if signed else ".3f"
    return f"{value:{form}}" + ("" if low is None else f" [{low:{form}}, {high:{form}}]")


def check_json(out: Path) -> None:
    if out.suffix != ".json":
        raise UserError(f"--out is {out}; write X.json, beside which X.md is written")


def write(out: Path, found: Mapping[str, Any], text: str) -> None:
    """Write a table to X.json and X.md, and print it."""
    write_text(out, json.dumps(found, indent=2, allow_nan=False) + "\n")
    write_text(out.with_suffix(".md"), text)
    with output():
        print(text, end="")
