"""Shared by the steps of `wm data`: source files, progress on a terminal, and counting tokens."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from wm_plugin.errors import UserError
from wm_plugin.untrusted import encodable

T = TypeVar("T")
SUFFIXES = (".json", ".jsonl", ".traj", ".gz", ".parquet")


def find_files(sources: list[str]) -> list[Path]:
    """The files among the sources, and those in their folders.

    Raises:
        UserError: an empty name, or a folder without files of a known suffix.
    """
    if "" in sources:  # an unset variable, which a path would take for the current folder
        raise UserError("SRC is an empty name; write a file or a folder ('.' is the current one)")
    files: list[Path] = []
    for source in map(Path, sources):
        inside = (
            sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if source.is_dir()
            else [source]
        )
        if not inside:
            raise UserError(f"{source}: no file in it ends in {', '.join(SUFFIXES)}")
        files += inside
    return files


def progress(rows: Iterable[T], what: str) -> Iterator[T]:
    """Pass rows through, with a count on a terminal."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + what), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        for row in rows:
            yield row
            bar.advance(task)


def token_counter(path: str) -> Callable[[str], int]:
    """A function that counts the tokens of a text with the tokenizer at `path`, without special tokens.

    Raises:
        UserError: it cannot be loaded, or transformers is not installed.
    """
    from wm_plugin.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path, field="--tokenizer")
    return lambda text: len(tokenizer(encodable(text), add_special_tokens=False).input_ids)
