"""Write rollouts as trajectories of the 4x4 grid (half by an expert), of the SQL tasks (short queries, some misspelt), or of the
shop (a careless shopper whose purchases often fail).
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.data.write import write
from wm_plugin.lab.tiny.shopper import careless
from wm_plugin.runtime.command import exit_code, output
from wm_plugin.worlds import shop, sql
from wm_plugin.worlds.agents.rollout import play
from wm_plugin.worlds.agents.scripted import call, scripted
from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment, dataset_rows, expert, wanderer

LOOKS = 3
TASKS = 1024  # at most this many different ones in the shop
HESITATES = 1 / 3  # so that a world model learns what follows a refused purchase
COLUMNS = {
    "departments": "name city",
    "employees": "name department_id manager_id salary hired_on",
    "products": "name price stock",
    "orders": "product_id employee_id quantity ordered_on",
}


def rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """Yield `count` episodes of the grid, alternately by a wanderer and an expert."""
    rng = random.Random(seed)
    for number, row in enumerate(dataset_rows(count, seed, held_out)):
        choose = (expert if number % 2 else wanderer)(rng)
        trajectory = play(GridEnvironment(), row, scripted(choose), max_turns=MAX_TURNS)
        yield trajectory.model_copy(update={"source": Source(format="wm", file="grid", row=number)})


def sql_rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """Yield `count` episodes of `LOOKS` random run_query calls that ignore the task's question."""
    rng = random.Random(seed * 2 + held_out)
    for number, row in enumerate(sql.dataset_rows(count, seed, held_out)):
        trajectory = play(sql.SqlEnvironment(), row, lambda *_: call("run_query", query=_look(rng)), max_turns=LOOKS)
        yield trajectory.model_copy(update={"source": Source(format="wm", file="sql", row=number)})


def shop_rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """Yield `count` episodes of a careless shopper, who repeats the tasks if there are fewer."""
    tasks = shop.dataset_rows(min(count, TASKS), seed, held_out)
    for number in range(count):
        row = tasks[number % len(tasks)]
        choose = careless(random.Random(f"{seed}/{number}/{held_out}"), hesitates=HESITATES)
        trajectory = play(shop.ShopEnvironment(), row, scripted(choose), max_turns=shop.MAX_TURNS)
        yield trajectory.model_copy(update={"source": Source(format="wm", file="shop", row=number)})


def _look(rng: random.Random) -> str:
    """Return a statement that selects at most one value; in one of three a name lacks a letter, which is an error."""
    table, columns = rng.choice(list(COLUMNS.items()))
    column = rng.choice(columns.split())
    misspelt = rng.randrange(6)
    if misspelt == 0:
        table = _misspell(rng, table)
    elif misspelt == 1:
        column = _misspell(rng, column)
    return f"SELECT {column} FROM {table} WHERE id = {rng.randint(1, 8)}"


def _misspell(rng: random.Random, name: str) -> str:
    place = rng.randrange(len(name))
    return name[:place] + name[place + 1 :]


ROLLOUTS = {"grid": rollouts, "sql": sql_rollouts, "shop": shop_rollouts}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m wm_plugin.lab.tiny.rollouts", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="X.jsonl; its folder is created")
    parser.add_argument("--environment", choices=ROLLOUTS, default="grid")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="use layouts or databases of the held-out split")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trajectories = ROLLOUTS[options.environment](options.count, options.seed, held_out=options.held_out)
    counts = write(trajectories, options.out)
    with output():
        print(f"{options.out}: {counts.trajectories} trajectories")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.lab.tiny.rollouts"))
