"""Questions about databases and changes to them, by running SQL on a real in-memory SQLite.

The standard level asks about a small company; hard-1 asks about joins in other databases, and hard-2 has changes made to them,
which are judged by the final tables.

The world is deterministic: the same row and the same calls give the same bytes with the same SQLite and Python versions. That
holds for a SELECT without ORDER BY too: its order is unspecified in SQL, but SQLite's plan depends on nothing but the
statement and the database. Whatever reads the clock, chance or the host is denied, and limits count work, never time.
An SQL error is an observation, because what the database complains about is worth predicting.
"""

import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from wm_plugin.environments.kit.counted import CountedEnvironment
from wm_plugin.environments.kit.rows import check_level
from wm_plugin.environments.kit.sqlite_guard import MAX_TEXT, cell, cut, run
from wm_plugin.environments.sql.databases import OTHERS, day
from wm_plugin.environments.sql.state import (
    DATABASES,
    ERROR,
    SEPARATOR,
    State,
    after,
    open_database,
    reached,
    read_state,
    tables,
)
from wm_plugin.errors import UserError, nearest

MAX_TURNS = 12
LEVELS = ("standard", "hard-1", "hard-2")
INSTRUCTION = f"""Answer a question about a company's SQLite database with at most {MAX_TURNS} tool calls.
list_tables and describe_table show what there is, run_query runs one SQL statement (reading or writing), and submit_answer
takes the answer, just the number or the name, and ends the task. Dates are text such as 2024-05-31, and date functions are
switched off.

Question: """
OTHER_INSTRUCTION = INSTRUCTION.replace("company", "{database}")
CHANGE_INSTRUCTION = f"""Change a {{database}}'s SQLite database as told with at most {MAX_TURNS} tool calls.
list_tables and describe_table show what there is, and run_query runs one SQL statement (reading or writing). When all is done,
submit_answer with the word done ends the task. Then every table must be as it would be after these changes and what the triggers
make of them, and no other; the schema too. What a trigger writes into a log cannot be taken back.

Task: """


class SqlEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls on a database of its own; reward 1 for submitting the right answer.

    A call is effective when it changes the database, or says what it has not said before and no error.
    """

    irreversible = ("submit_answer",)

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)  # a host may call from any thread
        self._answer = self._query = self._database = ""
        self._wanted: State | None = None  # of a change
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self.success = False
        self._seen: list[tuple[str, str, str]] = []  # tool, argument and text of each call

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
        """Build the database of `database_seed`; `answer` is what `submit_answer` should get.

        `query` is a statement that shows the answer, for the expert alone. Where there are `changes`, statements with `;` and a
        line break between them, the database should come to be as they would leave it, and the answer does not count.
        `max_turns` is `MAX_TURNS` unless the row says otherwise.
        """
        try:
            seed = int(database_seed)
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"An SQL task's column `database_seed` needs a whole number, not {str(database_seed)[:20]!r}"
            ) from None
        if not isinstance(database, str) or database not in DATABASES:
            name = str(database)[:40]
            raise UserError(f"An SQL task's column `database` is {name!r}{nearest(name, DATABASES)}")
        self._wanted = after(seed, database, str(changes)) if changes else None
        self._connection.close()
        self._connection = open_database(seed, database)
        self._answer, self._query, self._database = str(answer), str(changes or query), database
        self.max_turns = max_turns or MAX_TURNS
        self._begin()
        return "The database is open."

    def list_tables(self) -> str:
        """List the tables of the database.

        Returns:
            One name a line.
        """
        return self._call("list_tables", "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")

    def describe_table(self, table: str) -> str:
        """Show the statements that made a table, its indexes and its triggers.

        Args:
            table: The table's name.

        Returns:
            One SQL statement a line.
        """
        made = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type <> 'table', name"
        return self._call("describe_table", made, table)

    def run_query(self, query: str) -> str:
        """Run one SQL statement.

        Args:
            query: The statement, in the dialect of SQLite.

        Returns:
            The column names and the rows, the number of changed rows, or the error.
        """
        return self._call("run_query", query)

    def submit_answer(self, answer: str) -> str:
        """Give the answer to the question. This ends the task.

        Args:
            answer: The number or the name alone.

        Returns:
            Whether the answer is right.
        """
        self._take_turn()
        self._effective += 1
        if self._wanted is not None:
            self._ended, self.success = True, reached(self._connection, self._wanted)
            return f"The database is {'' if self.success else 'not '}as wanted."
        given = f"{answer:.17g}" if isinstance(answer, (int, float)) and abs(answer) < 1e15 else answer
        self._ended, self.success = True, isinstance(given, str) and is_right(given, self._answer)
        return "The answer is right." if self.success else "The answer is wrong."

    def get_reward(self) -> float:
        return float(self.success)

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
        self._effective += not failed and (call not in self._seen or self._connection.total_changes > before)
        self._seen.append(call)
        return text


def dataset_rows(count: int, seed: int = 0, held_out: bool = False, level: str = "standard") -> list[dict[str, Any]]:
    """Rows with the columns `prompt`, `database_seed`, `answer` and `query`, which shows the answer.

    Harder ones have `database` and `level`, and for changes `changes`. Held-out databases are those with seeds divisible by 10.
    """
    check_level(level, LEVELS, "SQL world")
    rng = random.Random(seed * 2 + held_out)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        database_seed = rng.randrange(10**8) * 10 + (0 if held_out else rng.randint(1, 9))
        if level == "standard":
            row = _question("company", database_seed, INSTRUCTION, rng)
        else:
            database = rng.choice(list(OTHERS))
            make = _question if level == "hard-1" else _change
            instruction = OTHER_INSTRUCTION if level == "hard-1" else CHANGE_INSTRUCTION
            row = make(database, database_seed, instruction.replace("{database}", database), rng)
            row = row and row | {"database": database, "level": level}
        if row:
            rows.append(row)
    return rows


def _question(database: str, seed: int, instruction: str, rng: random.Random) -> dict[str, Any] | None:
    """A row, or None where there is no single answer."""
    question, query = rng.choice(DATABASES[database].questions)
    with closing(open_database(seed, database)) as connection:
        picks = _picks(database, connection, rng)
        answers = connection.execute(query, picks).fetchall()
    if len(answers) != 1 or answers[0][0] is None:
        return None
    prompt = [{"role": "user", "content": f"{instruction}{question.format(**picks)}\n\n"}]
    row = {"prompt": prompt, "database_seed": seed, "answer": str(answers[0][0])}
    return row | {"query": _with_values(query, picks)}


def _change(database: str, seed: int, instruction: str, rng: random.Random) -> dict[str, Any] | None:
    """A row, or None where the changes fail or change nothing."""
    text, statements = rng.choice(DATABASES[database].changes)
    with closing(open_database(seed, database)) as connection:
        picks = _picks(database, connection, rng)
        before = read_state(connection)
    changes = SEPARATOR.join(_with_values(statement, picks) for statement in statements)
    try:
        if after(seed, database, changes) == before:
            return None
    except UserError:
        return None
    prompt = [{"role": "user", "content": f"{instruction}{text.format(**picks)}\n\n"}]
    return {"prompt": prompt, "database_seed": seed, "answer": "", "query": "", "changes": changes}


def _picks(database: str, connection: sqlite3.Connection, rng: random.Random) -> dict[str, Any]:
    """The values that a task names."""
    picks: dict[str, Any] = {"day": day(rng), "amount": rng.randint(2, 20)}
    for name, query in DATABASES[database].picks.items():
        picks[name] = rng.choice(connection.execute(query).fetchall())[0]
    return picks


def expert() -> Callable[[SqlEnvironment], tuple[str, dict[str, Any]] | None]:
    """Looks at the tables, runs the row's query or changes, and submits; gives up where the row has none."""

    def choose(environment: SqlEnvironment) -> tuple[str, dict[str, Any]] | None:
        query = environment._query
        if not query:
            return None
        shown = {tool: text for tool, _, text in environment._seen}
        if "list_tables" not in shown:
            return "list_tables", {}
        if "describe_table" not in shown:
            return "describe_table", {"table": next(table for table in tables(environment._database) if table in query)}
        done = {statement: text for tool, statement, text in environment._seen if tool == "run_query"}
        if left := [statement for statement in query.split(SEPARATOR) if statement not in done]:
            return "run_query", {"query": left[0]}
        return "submit_answer", {"answer": "done" if environment._wanted is not None else done[query].split("\n")[1]}

    return choose


def wanderer(rng: random.Random) -> Callable[[SqlEnvironment], tuple[str, dict[str, Any]]]:
    """Looks at tables and asks queries, some of which fail; now and then it answers."""

    def choose(environment: SqlEnvironment) -> tuple[str, dict[str, Any]]:
        table = rng.choice(tables(environment._database))
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
    """A statement with its names and numbers written out."""
    for name, value in values.items():
        query = query.replace(f":{name}", str(value) if isinstance(value, int) else f"'{value}'")
    return query


def is_right(given: str, answer: str) -> bool:
    """Whether the two are equal as numbers, or as names whatever the case."""
    try:
        return float(given[:100].replace(",", "")) == float(answer)
    except ValueError:
        return given.strip().casefold() == answer.casefold()
