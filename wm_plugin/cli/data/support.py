"""Shared by the steps of `wm data`: source files, progress on a terminal, counting tokens, and arguments of rewards."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from wm_plugin.errors import UserError
from wm_plugin.untrusted import encodable, loads

T = TypeVar("T")
SUFFIXES = (".json", ".jsonl", ".traj", ".gz", ".parquet")


def find_files(sources: list[str]) -> list[Path]:
    """The files among the sources, and those in their folders.

    Raises:
        UserError: an empty name, or a folder without files of a known suffix.
    """
    if "" in sources:  # an unset variable, which a path would take for the current folder
        raise UserError("SRC is an empty name; write a file or a folder ('.' is the current one)")
    from wm_plugin.data.host_dumps import FILE

    files: list[Path] = []
    for source in map(Path, sources):
        inside = (
            sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.name != FILE and p.is_file())
            if source.is_dir()
            else [source]
        )
        if not inside:
            raise UserError(f"{source}: no file in it ends in {', '.join(SUFFIXES)}")
        files += inside
    return files


def work_folder(out: Path, named: str | None) -> Path:
    """The folder of intermediate results: the one that `--work` names, or X.work beside the output X.

    Raises:
        UserError: X.work is a link, which nobody named, or the output could be one of the folder's files.
    """
    folder = Path(named) if named else out.with_name(f"{out.stem}.work")
    if not named and folder.is_symlink():
        raise UserError(f"{folder}: a link to another folder; remove it, or name a folder with --work")
    inside = os.path.realpath(folder) in map(str, Path(os.path.realpath(out)).parents)
    if inside and out.name.startswith(("episodes-", "predictions-")):
        raise UserError(f"--out: {out} has the name of an intermediate result in {folder}; write another name")
    return folder


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


def reward_arguments(name: str, text: str, flag: str) -> dict[str, Any]:
    """The arguments of a reward. A judge that fails says nothing here, where a trainer would count the lowest score."""
    from wm_plugin.rewards import REWARDS
    from wm_plugin.rewards.judge import JudgedReward

    try:
        arguments = loads(text, strict=True)
    except ValueError as error:
        raise UserError(f"{flag} is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise UserError(f"{flag} is {text:.100}; write an object of arguments by name")
    reward = REWARDS.get(name)
    judges = inspect.isclass(reward) and issubclass(reward, JudgedReward)
    return {"failed": math.nan, "no_verdict": math.nan, **arguments} if judges else arguments
