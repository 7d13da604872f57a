"""Rollouts of the 4x4 grid, half by an expert, and of the SQL tasks: short queries, some misspelt."""

import random
from collections.abc import Iterator

from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.worlds import sql
from wm_plugin.worlds.agents.rollout import play
from wm_plugin.worlds.agents.scripted import call, scripted
from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment, dataset_rows, expert, wanderer

LOOKS = 3
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


ROLLOUTS = {"grid": rollouts, "sql": sql_rollouts}
