"""Questions about databases and changes to them, by running SQL on a real in-memory SQLite.

The standard level asks about a small company, hard-1 about joins in other databases. The tasks of hard-2 are changes to these
databases, judged by the final tables.

The same row and calls give the same bytes with the same SQLite and Python versions, even for a SELECT without ORDER BY: SQLite's
plan depends only on the statement and the database. Functions that read the clock, random numbers or the host are denied, and
limits count work. An SQL error is an observation like any other: it is worth predicting.
"""

import math
import random
import re
import sqlite3
from contextlib import closing
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import (
    Rows,
    check_level,
    draws,
    row_number,
    row_texts,
    rows_of,
    turn_limit,
    unknown,
    world_seed,
)
from wm_plugin.worlds.kit.sqlite_guard import MAX_TEXT, cell, cut, run
from wm_plugin.worlds.specs import SPECS, described_as
from wm_plugin.worlds.sql.databases import (
    DATABASES,
    ERROR,
    ERRORS,
    OTHERS,
    SEPARATOR,
    State,
    day,
    has_state,
    open_database,
    read_state,
    state_after,
)

MAX_TURNS = 12
LEVELS = ("standard", "hard-1", "hard-2")
MAX_NUMERAL = 100  # characters
# `float` also takes 1_0 and foreign digits
NUMERAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
INSTRUCTION, CHANGE_INSTRUCTION = SPECS["sql"].instruction, SPECS["sql"].other_instruction


@described_as("sql")
class SqlEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls on a database of its own; reward 1 for submitting the right answer.

    A call is effective when it changes the database, or when its result is new and no error.
    """

    observer = "tool"
    refusals = tuple(f"{name}: " for name in ERRORS)
    answer_tool: str | None = "submit_answer"

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)  # a host may call from any thread
        self._answer = self._query = self._database = ""
        self._target: State | None = None  # the state that a change must lead to
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._texts: list[tuple[str, str, str]] = []  # tool, argument and text of each call

    def reset(
        self,
        database_seed: int,
        answer: str,
        query: str = "",
        database: str = "company",
        changes: str = "",
        max_turns: int | None = None,
        **_: Any,
    ) -> str:
        """Open a new database.

        Args:
            database_seed: the content of the database follows from it.
            answer: the right answer for `submit_answer`.
            query: a statement whose result is the answer, for the expert.
            database: one of `DATABASES`.
            changes: statements, separated by `;` and a line break. If there are any, the task is to bring the database into the
                state that they lead to, and the answer does not count.
        """
        seed = row_number(database_seed, "database_seed", "sql")
        answer, query, changes = row_texts("sql", answer=answer, query=query, changes=changes)
        if not isinstance(database, str) or database not in DATABASES:
            raise UserError(f"sql: a row's column `database` is {unknown(database, DATABASES)}")
        self._target = state_after(seed, database, changes) if changes else None
        self.answer_tool = None if changes else "submit_answer"
        self._connection.close()
        self._connection = open_database(seed, database)
        self._answer, self._query, self._database = answer, changes or query, database
        self.max_turns = turn_limit(max_turns, MAX_TURNS)
        self._begin()
        return "The database is open."

    def list_tables(self) -> str:
        return self._call("list_tables", "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")

    def describe_table(self, table: str) -> str:
        query = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type <> 'table', name"
        return self._call("describe_table", query, table)

    def run_query(self, query: str) -> str:
        return self._call("run_query", query)

    def submit_answer(self, answer: str) -> str:
        self._take_turn()
        self._effective += 1
        if self._target is not None:
            self._ended, self._reward = True, float(has_state(self._connection, self._target))
            return f"The database is {'' if self.success else 'not '}as wanted."
        is_number = isinstance(answer, (int, float)) and not isinstance(answer, bool) and abs(answer) < 1e15
        text = f"{answer:.17g}" if is_number else answer
        self._ended, self._reward = True, float(isinstance(text, str) and is_right(text, self._answer))
        return "The answer is right." if self.success else "The answer is wrong."

    def _call(self, tool: str, statement: Any, *parameters: Any) -> str:
        self._take_turn()
        before = self._connection.total_changes
        text = run(self._connection, statement, parameters)
        if tool == "describe_table" and text == "sql":
            text = cut(f"OperationalError: no such table: {cell(parameters[0])}", MAX_TEXT)
        argument = [*parameters, statement][0]
        call = (tool, argument if isinstance(argument, str) else "", text)
        failed = re.match(ERROR, text) is not None
        self._invalid += failed
        self._effective += not failed and (call not in self._texts or self._connection.total_changes > before)
        self._texts.append(call)
        return text


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> Rows:
    """Make rows with the columns `prompt`, `database_seed`, `answer` and `query`, whose result is the answer.

    Rows of harder levels also have `database` and `level`, those of hard-2 `changes`. Held-out databases have other seeds.
    """
    check_level(level, LEVELS, "SQL world")
    rng = draws(seed, held_out)
    tasks: Rows = []
    while len(tasks) < count:
        database_seed = world_seed(rng, held_out)
        database = "company" if level == "standard" else rng.choice(OTHERS)
        task = (_change if level == "hard-2" else _question)(database, database_seed, rng)
        if task:
            tasks.append(task if level == "standard" else task | {"database": database, "level": level})
    instruction = CHANGE_INSTRUCTION if level == "hard-2" else INSTRUCTION
    return rows_of(instruction, tasks, max_turns, MAX_TURNS, "tool call")


def _question(database: str, seed: int, rng: random.Random) -> dict[str, Any] | None:
    """Make a task, or None if the question has no single answer."""
    question, query = rng.choice(DATABASES[database].questions).values()
    with closing(open_database(seed, database)) as connection:
        picks = _picks(database, connection, rng)
        answers = connection.execute(query, picks).fetchall()
    if len(answers) != 1 or answers[0][0] is None:
        return None
    words = {"database": database, "task": question.format(**picks)}
    task = {"words": words, "database_seed": seed, "answer": str(answers[0][0])}
    return task | {"query": _with_values(query, picks)}


def _change(database: str, seed: int, rng: random.Random) -> dict[str, Any] | None:
    """Make a task, or None if the changes fail or change nothing."""
    text, statements = rng.choice(DATABASES[database].changes).values()
    with closing(open_database(seed, database)) as connection:
        picks = _picks(database, connection, rng)
        before = read_state(connection)
    changes = SEPARATOR.join(_with_values(statement, picks) for statement in statements)
    try:
        if state_after(seed, database, changes) == before:
            return None
    except UserError:
        return None
    words = {"database": database, "task": text.format(**picks)}
    return {"words": words, "database_seed": seed, "answer": "", "query": "", "changes": changes}


def _picks(database: str, connection: sqlite3.Connection, rng: random.Random) -> dict[str, Any]:
    """Draw values for the placeholders of a task."""
    picks: dict[str, Any] = {"day": day(rng), "amount": rng.randint(2, 20)}
    for name, query in DATABASES[database].picks.items():
        picks[name] = rng.choice(connection.execute(query).fetchall())[0]
    return picks


def expert() -> Chooser:
    """Return a policy that looks at the tables, runs the row's query or changes, and submits; it gives up if there is neither."""

    def choose(environment: SqlEnvironment) -> ToolCall | None:
        query = environment._query
        if not query:
            return None
        texts = {tool: text for tool, _, text in environment._texts}
        if "list_tables" not in texts:
            return "list_tables", {}
        if "describe_table" not in texts:
            tables = sorted(DATABASES[environment._database].tables)
            return "describe_table", {"table": next(table for table in tables if table in query)}
        done = {statement: text for tool, statement, text in environment._texts if tool == "run_query"}
        if remaining := [statement for statement in query.split(SEPARATOR) if statement not in done]:
            return "run_query", {"query": remaining[0]}
        return "submit_answer", {"answer": "done" if environment._target is not None else done[query].split("\n")[1]}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that looks at tables and runs queries, some of which fail; now and then it answers."""

    def choose(environment: SqlEnvironment) -> ToolCall:
        table = rng.choice(sorted(DATABASES[environment._database].tables))
        tool = rng.choice(["list_tables", "describe_table", "run_query", "run_query", "run_query", "submit_answer"])
        queries = [
            f"SELECT count(*) FROM {table}",
            f"SELECT * FROM {table} WHERE id < {rng.randint(1, 9)}",
            f"SELECT name FROM {table} ORDER BY name",
            f"DELETE FROM {table} WHERE id = {rng.randint(1, 9)}",
        ]
        values = {"describe_table": ("table", table), "run_query": ("query", rng.choice(queries))}
        if tool == "submit_answer":
            return tool, {"answer": str(rng.randint(1, 9))}
        return tool, dict([values[tool]]) if tool in values else {}

    return choose


def _with_values(query: str, values: dict[str, Any]) -> str:
    """Replace the placeholders of a statement by literals."""
    for name, value in values.items():
        query = query.replace(f":{name}", str(value) if isinstance(value, int) else f"'{value}'")
    return query


def is_right(submission: str, answer: str) -> bool:
    """Return whether two answers are equal as numbers, or as names in any case."""
    numbers = [text.replace(",", "").strip() for text in (submission, answer)]
    if max(map(len, numbers)) <= MAX_NUMERAL and all(map(NUMERAL.fullmatch, numbers)):
        values = [float(text) for text in numbers]
        if all(map(math.isfinite, values)):
            return values[0] == values[1]
    return submission.strip().casefold() == answer.casefold()
