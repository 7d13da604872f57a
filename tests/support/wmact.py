"""What a policy says that solves WMAct's levels by its text protocol, for trainers that take answers from a script."""

from collections.abc import Iterable, Mapping
from typing import Any

from wm_plugin.worlds import maze, sokoban, taxi
from wm_plugin.worlds.worlds import load

EXPERTS = {"maze": maze.expert, "sokoban": sokoban.expert, "taxi": taxi.expert}
MANY = 200  # actions, which is a whole plan
END = "It is done."  # after the last turn
GIVES_UP = "I give up."


def says(actions: str, thought: str = "hm") -> str:
    return f"<think>{thought}</think><action>{actions}</action>"


def plans(rows: Iterable[Mapping[str, Any]], per_turn: int) -> dict[str, list[str]]:
    """For each row, by the first observation, which no other row has: the answers of an expert, `per_turn` actions each. A row of
    one turn has a whole plan in one answer."""
    answers = {}
    for row in rows:
        environment = load(row["environment"]).make()
        columns = {name: value for name, value in row.items() if name not in ("prompt", "environment")}
        first = environment.reset(**{name: value for name, value in columns.items() if value is not None})
        expert = EXPERTS[row["environment"]](MANY if row.get("max_turns") == 1 else per_turn)
        turns = []
        while not environment.over:
            tool, arguments = expert(environment)
            (actions,) = arguments.values()
            getattr(environment, tool)(actions)
            turns.append(says(actions))
        assert environment.success
        assert first not in answers
        answers[first] = [*turns, END]
    return answers
