"""Shared by the verbs: find a world, read files, show progress on a terminal, place intermediate results."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from wm_plugin.errors import UserError
from wm_plugin.options import Options
from wm_plugin.runtime.texts import read_yaml, yaml_of
from wm_plugin.untrusted import encodable

if TYPE_CHECKING:
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.worlds import World

T = TypeVar("T")
Block = TypeVar("Block", bound=Options)


def search_here() -> None:
    """Let a dotted path name a module in the working directory, where a console script does not look."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def find(name: str) -> "World":
    """The world of this name or dotted path, ready to be played."""
    from wm_plugin.worlds.worlds import load

    search_here()
    world = load(name)
    if missing := world.missing():
        raise UserError(f"{name} needs {' and '.join(missing)}")
    return world


def simulated_world(world: "World", path: str) -> "SimulatedWorld":
    """The world in the world model that a file names, by itself or under `simulation`."""
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

    config = read_block(path, "--simulation", "simulation", SimulationConfig)
    if config.worlds is not None and world.name not in config.worlds:
        raise UserError(
            f"--simulation: its worlds are {', '.join(config.worlds)}; add {world.name}, or leave worlds out"
        )
    return SimulatedWorld(world.spec, config=config)


def read_block(path: str, flag: str, key: str, model: type[Block]) -> Block:
    """Read options that a file has by themselves or under `key`, or that are given as JSON in its place, as trainers take them.

    Args:
        flag: the flag that names the file.
    """
    values = yaml_of(path, flag) if (inline := path.lstrip().startswith("{")) else read_yaml(Path(path), flag)
    if isinstance(values, dict) and key in values:  # no block has its own name among its keys
        values = values[key]
    try:
        return model.read(values, key)
    except UserError as error:
        raise UserError(f"{flag if inline else path}: {error}") from None


def token_counter(path: str | None) -> Callable[[str], int] | None:
    """A function that counts the tokens of a text with the tokenizer at `path`, without special tokens."""
    from wm_plugin.tokens.tokenizer import load_tokenizer

    if path is None:
        return None
    tokenizer = load_tokenizer(path, field="--tokenizer")
    return lambda text: len(tokenizer(encodable(text), add_special_tokens=False).input_ids)


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


def quiet() -> None:
    """Turn off the progress bars of transformers unless stderr is a terminal."""
    if not sys.stderr.isatty():
        try:
            from transformers.utils.logging import disable_progress_bar
        except ModuleNotFoundError:
            return
        disable_progress_bar()
