"""Policies that need no model: experts and wanderers of our environments, for tests, demonstrations and small recipes."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from wm_plugin.agents.rollout import Policy
from wm_plugin.environments import sql
from wm_plugin.trajectories.schema import Action, Call, Trajectory

DIRECTIONS = "UDLR"


def call(name: str, **arguments: Any) -> Action:
    """An action of one tool call."""
    return Action(calls=(Call(name=name, arguments=arguments),))


def walker(choose: Callable[[Any], str]) -> Policy:
    """A policy for the grid and the maze: `grid.expert(rng)`, `maze.expert(rng)` or `grid.uniform(rng)` as calls of `move`."""
    return lambda _, environment: call("move", direction=choose(environment))


def actor(choose: Callable[[Any], str]) -> Policy:
    """A policy for worlds with `act`: `sokoban.expert()`, `taxi.expert()` or `wordle.expert()` as calls of it."""
    return lambda _, environment: call("act", actions=choose(environment))


def directions(rng: random.Random) -> Callable[[Trajectory, Any, int], Sequence[Action]]:
    """Proposes moves in the grid and the maze: `count` different ones, every set of them as likely as another."""
    return lambda _, _environment, count: [
        call("move", direction=direction) for direction in rng.sample(DIRECTIONS, min(count, len(DIRECTIONS)))
    ]


def sql_expert(trajectory: Trajectory, _: Any) -> Action | None:
    """Looks at the tables, asks the one query that answers the question, and submits what it shows."""
    turns = trajectory.turns
    query = sql_query(trajectory)
    if not turns:
        return call("list_tables")
    if len(turns) == 1:
        tables = [name for name in turns[0].observations[0].text.split("\n")[1:] if re.search(rf"\b{name}\b", query)]
        return Action(calls=tuple(Call(name="describe_table", arguments={"table": name}) for name in tables))
    if len(turns) == 2:
        return call("run_query", query=query)
    return call("submit_answer", answer=turns[-1].observations[0].text.split("\n")[1])


def sql_query(trajectory: Trajectory) -> str:
    """The statement of the task that the question was made from, with the names and numbers of the question in it."""
    question = trajectory.context.initial_state.rpartition("Question: ")[2]
    for template, query in sql.TASKS:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(template))
        if found := re.match(pattern, question):
            for name, value in found.groupdict().items():
                query = query.replace(f":{name}", value if name == "amount" else f"'{value}'")
            return query
    raise ValueError(f"no task asks {question[:60]!r}")
