"""Questions about a small company's database, answered by running SQL on a real in-memory SQLite.

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

from wm_plugin.environments.sqlite_guard import MAX_TEXT, cell, cut, guard, run
from wm_plugin.errors import UserError

MAX_TURNS = 12
SCHEMA = """
PRAGMA foreign_keys = ON;
PRAGMA temp_store = MEMORY;
PRAGMA max_page_count = 256;
CREATE TABLE departments (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL);
CREATE TABLE employees (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
department_id INTEGER NOT NULL REFERENCES departments (id), manager_id INTEGER REFERENCES employees (id), \
salary INTEGER NOT NULL CHECK (salary > 0), hired_on TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
price INTEGER NOT NULL CHECK (price > 0), stock INTEGER NOT NULL CHECK (stock >= 0));
CREATE TABLE orders (id INTEGER PRIMARY KEY, product_id INTEGER NOT NULL REFERENCES products (id), \
employee_id INTEGER NOT NULL REFERENCES employees (id), quantity INTEGER NOT NULL CHECK (quantity > 0), \
ordered_on TEXT NOT NULL);
CREATE TABLE salary_log (id INTEGER PRIMARY KEY, employee_id INTEGER NOT NULL, old_salary INTEGER, new_salary INTEGER);
BEGIN;
"""
TRIGGERS = """
CREATE TRIGGER log_salary AFTER UPDATE OF salary ON employees BEGIN \
INSERT INTO salary_log (employee_id, old_salary, new_salary) VALUES (old.id, old.salary, new.salary); END;
CREATE TRIGGER take_stock AFTER INSERT ON orders BEGIN \
UPDATE products SET stock = stock - new.quantity WHERE id = new.product_id; END;
"""
TABLES = ("departments", "employees", "orders", "products", "salary_log")
DEPARTMENTS = "Design Finance Kitchen Legal Logistics Research Sales Support"
CITIES = "Bergen Gdansk Lyon Porto Turku Zagreb"
PEOPLE = """Ada Amir Anouk Bela Bruno Carla Chidi Dana Diego Edda Emil Farah Fumi Gita Goran Hana Hugo Ines Ivan Jana Jonas
Kaya Kofi Lena Luca Mara Milo Nadia Nils Olga Omar Paula Pavel Quinn Rosa Ruben Sana Sven Tara Theo Uma Vera Yusuf Zoe"""
PRODUCTS = "anvil basket candle drum easel funnel globe hammock inkwell jug kettle ladder mirror notebook"

# A question and the query whose single value answers it. A question is dropped where that value is tied or missing.
TASKS = [
    (
        "How many employees work in {department}?",
        "SELECT count(*) FROM employees e JOIN departments d ON d.id = e.department_id WHERE d.name = :department",
    ),
    (
        "Who earns the most in {department}?",
        "SELECT name FROM (SELECT e.name, rank() OVER (ORDER BY salary DESC) AS place FROM employees e"
        " JOIN departments d ON d.id = e.department_id WHERE d.name = :department) WHERE place = 1",
    ),
    (
        "Which department has the most employees?",
        "SELECT name FROM (SELECT d.name, rank() OVER (ORDER BY count(*) DESC) AS place FROM employees e"
        " JOIN departments d ON d.id = e.department_id GROUP BY d.id) WHERE place = 1",
    ),
    (
        "How many orders of {product} took place from {day} on, that day included?",
        "SELECT count(*) FROM orders o JOIN products p ON p.id = o.product_id WHERE p.name = :product AND ordered_on >= :day",
    ),
    (
        "How much money did the orders of {product} bring in, at price times quantity?",
        "SELECT sum(price * quantity) FROM orders o JOIN products p ON p.id = o.product_id WHERE p.name = :product",
    ),
    (
        "Which product was never ordered?",
        "SELECT name FROM products WHERE id NOT IN (SELECT product_id FROM orders)",
    ),
    (
        "How many people report to {employee}, directly or through others?",
        "WITH RECURSIVE team (id) AS (SELECT id FROM employees WHERE name = :employee UNION ALL"
        " SELECT e.id FROM employees e JOIN team ON e.manager_id = team.id) SELECT count(*) - 1 FROM team",
    ),
    (
        "Whose orders came to the largest total quantity?",
        "SELECT name FROM (SELECT e.name, rank() OVER (ORDER BY sum(quantity) DESC) AS place FROM orders o"
        " JOIN employees e ON e.id = o.employee_id GROUP BY e.id) WHERE place = 1",
    ),
    (
        "Raise every salary in {department} by {amount}. What do all salaries in the company add up to afterwards?",
        "SELECT sum(salary + (d.name = :department) * :amount) FROM employees e JOIN departments d ON d.id = e.department_id",
    ),
    (
        "Record a new order of {product} by {employee} on {day}, quantity {amount}. What is its stock afterwards?",
        "SELECT stock - :amount FROM products WHERE name = :product AND stock >= :amount",
    ),
]
INSTRUCTION = f"""Answer a question about a company's SQLite database with at most {MAX_TURNS} tool calls.
list_tables and describe_table show what there is, run_query runs one SQL statement (reading or writing), and submit_answer
takes the answer, just the number or the name, and ends the task. Dates are text such as 2024-05-31, and date functions are
switched off.

Question: """


class SqlEnvironment:
    """One episode: at most `max_turns` tool calls on a database of its own; reward 1 for submitting the right answer.

    A call is effective when it changes the database, or says what it has not said before and no error.
    """

    irreversible = ("submit_answer",)

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)  # a host may call from any thread
        self._answer = self._query = ""
        self._max_turns = 0  # over until the first reset
        self._ended = False
        self.turns = 0
        self.success = False
        self._seen: list[tuple[str, str, str]] = []  # tool, argument and text of each call
        self._effective = self._invalid = 0

    def reset(self, database_seed: int, answer: str, query: str = "", max_turns: int | None = None, **_: Any) -> str:
        """Build the database of `database_seed`; `answer` is what `submit_answer` should get.

        `query` is a statement that shows the answer, for the expert alone. `max_turns` is `MAX_TURNS` unless the row says
        otherwise.
        """
        try:
            seed = int(database_seed)
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"An SQL task's column `database_seed` needs a whole number, not {str(database_seed)[:20]!r}"
            ) from None
        self._connection.close()
        self._connection = open_database(seed)
        self._answer, self._query = str(answer), str(query)
        self._max_turns = max_turns or MAX_TURNS
        self._ended, self.turns, self.success = False, 0, False
        self._seen, self._effective, self._invalid = [], 0, 0
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
        given = f"{answer:.17g}" if isinstance(answer, (int, float)) and abs(answer) < 1e15 else answer
        self._ended, self.success = True, isinstance(given, str) and is_right(given, self._answer)
        self._effective += 1
        return "The answer is right." if self.success else "The answer is wrong."

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def over(self) -> bool:
        return self._ended or self.turns >= self._max_turns

    @property
    def metrics(self) -> dict[str, int]:
        """Counts of the episode so far: all calls, the effective ones, and those that were answered with an error."""
        return {"actions": self.turns, "effective": self._effective, "invalid": self._invalid}

    def _call(self, tool: str, statement: Any, *parameters: Any) -> str:
        self._take_turn()
        before = self._connection.total_changes
        text = run(self._connection, statement, parameters)
        if tool == "describe_table" and text == "sql":
            text = cut(f"OperationalError: no such table: {cell(parameters[0])}", MAX_TEXT)
        argument = [*parameters, statement][0]
        call = (tool, argument if isinstance(argument, str) else "", text)
        failed = re.match(r"[A-Za-z]+Error: ", text) is not None
        self._invalid += failed
        self._effective += not failed and (call not in self._seen or self._connection.total_changes > before)
        self._seen.append(call)
        return text

    def _take_turn(self) -> None:
        if self.over:
            raise ValueError("The episode is over.")
        self.turns += 1


def open_database(seed: int) -> sqlite3.Connection:
    """A new guarded in-memory database whose content follows from `seed`."""
    rng = random.Random(seed)
    # Any thread, one at a time: an async host may run a tool in another one than `reset`.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA)
    departments = [
        (i, name, rng.choice(CITIES.split())) for i, name in enumerate(rng.sample(DEPARTMENTS.split(), 4), 1)
    ]
    employees = [
        (i, name, rng.randint(1, 4), rng.randint(1, i - 1) if i > 1 else None, rng.randint(24, 96) * 100, _day(rng))
        for i, name in enumerate(rng.sample(PEOPLE.split(), rng.randint(16, 24)), 1)
    ]
    products = [
        (i, name, rng.randint(2, 90), rng.randint(0, 60)) for i, name in enumerate(rng.sample(PRODUCTS.split(), 8), 1)
    ]
    orders = [
        (i, rng.randint(1, len(products)), rng.randint(1, len(employees)), rng.randint(1, 12), _day(rng))
        for i in range(1, rng.randint(16, 32))
    ]
    connection.executemany("INSERT INTO departments VALUES (?, ?, ?)", departments)
    connection.executemany("INSERT INTO employees VALUES (?, ?, ?, ?, ?, ?)", employees)
    connection.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders)
    connection.executescript(TRIGGERS)  # commits first; the past orders are in the stock already
    guard(connection)
    return connection


def dataset_rows(count: int, seed: int = 0, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows with the columns `prompt`, `database_seed`, `answer` and `query`, which shows the answer.

    Held-out databases are those with seeds divisible by 10.
    """
    rng = random.Random(seed * 2 + held_out)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        database_seed = rng.randrange(10**8) * 10 + (0 if held_out else rng.randint(1, 9))
        question, query = rng.choice(TASKS)
        with closing(open_database(database_seed)) as connection:
            picks: dict[str, Any] = {"day": _day(rng), "amount": rng.randint(2, 20)}
            for kind in ("department", "product", "employee"):
                names = connection.execute(f"SELECT name FROM {kind}s ORDER BY id").fetchall()
                picks[kind] = rng.choice(names)[0]
            answers = connection.execute(query, picks).fetchall()
        if len(answers) == 1 and answers[0][0] is not None:
            prompt = [{"role": "user", "content": f"{INSTRUCTION}{question.format(**picks)}\n\n"}]
            row = {"prompt": prompt, "database_seed": database_seed, "answer": str(answers[0][0])}
            rows.append(row | {"query": _with_values(query, picks)})
    return rows


def expert() -> Callable[[SqlEnvironment], tuple[str, dict[str, Any]] | None]:
    """Looks at the tables, asks the row's query, and submits what it shows; gives up where the row has none."""

    def choose(environment: SqlEnvironment) -> tuple[str, dict[str, Any]] | None:
        query = environment._query
        if not query:
            return None
        shown = {tool: text for tool, _, text in environment._seen}
        if "list_tables" not in shown:
            return "list_tables", {}
        if "describe_table" not in shown:
            return "describe_table", {"table": next(table for table in TABLES if table in query)}
        answers = [text for _, statement, text in environment._seen if statement == query]
        return ("submit_answer", {"answer": answers[0].split("\n")[1]}) if answers else ("run_query", {"query": query})

    return choose


def wanderer(rng: random.Random) -> Callable[[SqlEnvironment], tuple[str, dict[str, Any]]]:
    """Looks at tables and asks queries, some of which fail; now and then it answers."""

    def choose(_: SqlEnvironment) -> tuple[str, dict[str, Any]]:
        table = rng.choice(TABLES)
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
    """A query of `TASKS` with its names and numbers written out."""
    for name, value in values.items():
        query = query.replace(f":{name}", str(value) if name == "amount" else f"'{value}'")
    return query


def is_right(given: str, answer: str) -> bool:
    """Whether the two are equal as numbers, or as names whatever the case."""
    try:
        return float(given[:100].replace(",", "")) == float(answer)
    except ValueError:
        return given.strip().casefold() == answer.casefold()


def _day(rng: random.Random) -> str:
    return f"202{rng.randint(1, 4)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
