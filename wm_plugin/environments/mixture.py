"""Several worlds in one run: their rows in one dataset, whose column `environment` says which world a row is of.

TRL takes them with `environment: {name: class}`, verl with `wm.environment={name: class}`.
"""

import random
from collections.abc import Mapping
from typing import Any

from wm_plugin.environments import ENVIRONMENTS
from wm_plugin.errors import UserError
from wm_plugin.registry import import_object


def dataset_rows(environments: Mapping[str, int], seed: int = 0, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows of several worlds in a random order: those that each world's own `dataset_rows` makes, and a column `environment`.

    All rows have the columns of all worlds, because datasets want that; those of other worlds are None.

    Args:
        environments: how many rows of each, by its registered name or its class's dotted path.

    Raises:
        UserError: there is no such world, its module has no `dataset_rows`, or there are not so many rows of it.
    """
    if not environments:
        raise UserError('environments is empty; write {"grid": 64, "sql": 64}')
    rows = []
    for name, count in environments.items():
        made = import_object(f"{ENVIRONMENTS.get(name).__module__}:dataset_rows", field="environments")
        rows += [{**row, "environment": name} for row in made(count=count, seed=seed, held_out=held_out)]
    random.Random(seed).shuffle(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]
