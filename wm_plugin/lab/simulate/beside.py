"""A predicted observation beside the real one: their lines, aligned, with marks where they differ."""

import sys
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from wm_plugin.runtime.command import output
from wm_plugin.runtime.terminal import harmless, say

_MOST = 200  # lines of a text that are aligned, in quadratic time; longer texts are compared place by place
_NARROW = 60  # columns of a terminal that are too few for two texts


@dataclass(frozen=True)
class Pair:
    """A line of both texts; None: it has none there."""

    predicted: str | None
    real: str | None

    @property
    def same(self) -> bool:
        return self.predicted == self.real


def same(predicted: str, real: str) -> bool:
    """Return whether the texts are equal but for white space at their ends, as `wm eval consistency` compares."""
    return predicted.strip() == real.strip()


def aligned(predicted: str, real: str) -> list[Pair]:
    """Return the lines of both texts in pairs."""
    ours, theirs = predicted.strip("\n").split("\n"), real.strip("\n").split("\n")
    if max(len(ours), len(theirs)) > _MOST:
        return [Pair(*pair) for pair in zip_longest(ours, theirs)]
    pairs: list[Pair] = []
    for _, a, b, c, d in SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes():
        pairs += [Pair(*pair) for pair in zip_longest(ours[a:b], theirs[c:d])]
    return pairs


def print_beside(predicted: str, real: str) -> None:
    """Print both texts: in two columns on a terminal; in a pipe by line, with `+` (world model) and `-` (real world)."""
    from rich.console import Console

    pairs, console = aligned(predicted, real), Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty() or console.width < _NARROW:
        say("\n".join(_lines(pairs)))
        return
    from rich.table import Column, Table
    from rich.text import Text

    ours, theirs = (Column(name, ratio=1, overflow="fold") for name in ("world model", "real world"))
    table = Table(ours, Column("", width=1), theirs, expand=True, box=None, pad_edge=False)
    for pair in pairs:
        styles = ("", "") if pair.same else ("bold green", "bold red")
        texts = (harmless(text or "").expandtabs() for text in (pair.predicted, pair.real))
        left, right = (Text(text, style) for text, style in zip(texts, styles, strict=True))
        table.add_row(left, Text("" if pair.same else "≠"), right)
    with output():
        console.print(table)


def _lines(pairs: list[Pair]) -> list[str]:
    lines = []
    for pair in pairs:
        if pair.same:
            lines.append(f"  {pair.real}")
        else:
            lines += [f"+ {pair.predicted}"] if pair.predicted is not None else []
            lines += [f"- {pair.real}"] if pair.real is not None else []
    return lines
