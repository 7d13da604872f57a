"""Shared by the steps of `wm env`: load the environment that is named, and make rows by the flags."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.block import read_block
from wm_plugin.cli.steps import search_here
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.worlds import World

MOST_ROWS = 1_000_000  # they are made before the first is played
NAME = "ours by name (wm env list), or yours as package.module:Class; with --simulation also a file of tools (docs/simulation.md)"


def add_row_arguments(parser: Any) -> None:
    """Add the flags that choose rows: `--level`, `--seed`, and `--held-out` or `--split`."""
    parser.add_argument(
        "--level", metavar="NAME", help="a level of the world (wm env list names them; default: the first)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks (default: 0)")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--held-out", action="store_true", help="rows that nothing should be trained on")
    parts.add_argument(
        "--split", metavar="NAME", help="train, seen or unseen, of a world that can tell them apart (wm env list)"
    )


def named(name: str) -> "World":
    """The environment of this name or dotted path.

    Raises:
        UserError: there is none.
    """
    from wm_plugin.worlds.worlds import load

    search_here()
    return load(name)


def find(name: str) -> "World":
    """The environment of this name or dotted path, ready to be played.

    Raises:
        UserError: there is none, or something that it needs is not installed.
    """
    world = named(name)
    if missing := world.missing():
        raise UserError(f"{name} needs {' and '.join(missing)}")
    return world


def simulated_world(world: "World", path: str) -> "SimulatedWorld":
    """The environment in the world model that a file names, by itself or under `simulation`.

    Raises:
        UserError: as from `read_block`, or the simulation is of other worlds, or does not fit this one.
    """
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

    config = read_block(path, "--simulation", "simulation", partial(SimulationConfig.read, where="simulation"))
    if config.worlds is not None and world.name not in config.worlds:
        raise UserError(
            f"{path}: simulation.worlds is of {', '.join(config.worlds or ())}; add {world.name}, or leave it out"
        )
    return SimulatedWorld(world.spec, config=config)


def rows(world: "World", args: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    """`count` rows by the flags of `add_row_arguments`, and by `--max-turns` where there is one."""
    return world.rows(count, args.seed, args.held_out, args.level, args.split, getattr(args, "max_turns", None))
