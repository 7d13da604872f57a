"""Several worlds in one run: their rows in one dataset, whose column `environment` says which world a row is of.

TRL takes them with `environment: {name: class}`, verl with `wm.environment={name: class}`.
"""

import random
from collections.abc import Mapping
from typing import Any

from wm_plugin.environments.worlds import load
from wm_plugin.errors import UserError


def dataset_rows(
    environments: Mapping[str, int | Mapping[str, Any]], seed: int = 0, held_out: bool = False
) -> list[dict[str, Any]]:
    """Rows of several environments in a random order, each with a column `environment` that names its environment.

    All rows have the columns of all environments, because a dataset has one set of columns; a column that an environment does not
    use is None.

    Args:
        environments: how many rows of each, by its registered name or its class's dotted path; or the arguments of its own
            `dataset_rows`: `{"sokoban": {"count": 256, "level": "hard-1", "max_turns": 1}}`.

    Raises:
        UserError: there is no such environment, it has fewer rows, or it has no `dataset_rows` and needs more than a seed.
    """
    if not environments:
        raise UserError('environments is empty; write {"grid": 64, "sql": 64}')
    rows = []
    for name, wanted in environments.items():
        options = {"count": wanted} if isinstance(wanted, int) else dict(wanted)
        rows_of_world = load(name).rows(**{"seed": seed, "held_out": held_out} | options)
        rows += [{**row, "environment": name} for row in rows_of_world]
    random.Random(seed).shuffle(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]
