"""Several worlds in one run: their rows in one dataset, whose column `environment` names each row's world.

TRL takes them with `environment: {name: class}`, verl with `wm.environment={name: class}`.
"""

import random
from collections.abc import Mapping
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.registry import import_object
from wm_plugin.worlds.specs import maker
from wm_plugin.worlds.worlds import load


def dataset_rows(
    environments: Mapping[str, int | Mapping[str, Any]], seed: int = 0, held_out: bool = False
) -> list[dict[str, Any]]:
    """Make rows of several environments in a random order, each with a column `environment` that names its environment.

    All rows have the columns of all environments; a column that an environment does not use is None.

    Args:
        environments: how many rows of each, by its registered name, its class's dotted path or its server; or the arguments of
            its `dataset_rows`, such as {"count": 64, "max_turns": 10}. With "world" among them the key is a name of your own, for
            a world that is simulated beside itself: {"sim": {"world": "grid", "count": 64}}.
    """
    if not environments:
        raise UserError('environments is empty; write {"grid": 64, "sql": 64}')
    rows = []
    for name, count in environments.items():
        rows += [{**row, "environment": name} for row in _rows(name, count, seed, held_out)]
    random.Random(seed).shuffle(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _rows(name: str, arguments: int | Mapping[str, Any], seed: int, held_out: bool) -> list[dict[str, Any]]:
    if not isinstance(arguments, Mapping):
        return load(name).rows(arguments, seed, held_out)
    arguments = dict(arguments)
    world = load(arguments.pop("world", name))
    if world.spec.dataset_rows is None:
        raise UserError(f"{name} has no dataset_rows that could take arguments; write a number of rows")
    function = import_object(world.spec.dataset_rows, field="environments")
    if maker(world.spec.path):
        arguments["path"] = world.spec.path
    try:
        rows: list[dict[str, Any]] = function(**{"seed": seed, "held_out": held_out} | arguments)
    except TypeError as error:
        raise UserError(f"environments.{name} does not fit {world.spec.dataset_rows}: {error}") from None
    return rows
