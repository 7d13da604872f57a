"""What the steps of `wm data` share: the files that are named, a count on a terminal, and a tokenizer that counts."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from wm_plugin.errors import UserError
from wm_plugin.tokens.tokenizer import load_tokenizer

T = TypeVar("T")
SUFFIXES = (".json", ".jsonl", ".traj", ".gz", ".parquet")


def find_files(sources: list[str]) -> list[Path]:
    """The files that are named, and those in folders that are."""
    found: list[Path] = []
    for source in map(Path, sources):
        inside = (
            sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if source.is_dir()
            else [source]
        )
        if not inside:
            raise UserError(f"{source}: no file in it ends in {', '.join(SUFFIXES)}")
        found += inside
    return found


def progress(rows: Iterable[T], what: str) -> Iterator[T]:
    """The same rows, counted on a terminal."""
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
    """Counts the tokens of a text with the tokenizer at `path`; special tokens are not added.

    Raises:
        UserError: it cannot be loaded, or transformers is not installed.
    """
    tokenizer = load_tokenizer(path, field="--tokenizer")
    return lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)
