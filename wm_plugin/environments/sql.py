"""Questions about a small company's database, answered by running SQL on a real in-memory SQLite.

The world is deterministic: the same row and the same calls give the same bytes with the same SQLite and Python versions. That
holds for a SELECT without ORDER BY too: its order is unspecified in SQL, but SQLite's plan depends on nothing but the
statement and the database. Whatever reads the clock, chance or the host is denied, and limits count work, never time.
An SQL error is an observation, because what the database complains about is worth predicting.
"""

import itertools
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from functools import cache
from typing import Any

MAX_TURNS = 12
MAX_STEPS = 100_000  # virtual-machine steps a statement; the slowest statement found takes 1.5 s
MAX_COPIES = 200_000  # see `copies`: about 0.2 s and 30 MB
MAX_ROWS, MAX_CELL, MAX_TEXT = 20, 300, 4000  # shown rows; characters a cell and an observation

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2000,  # bytes of a cell and of a row: with MAX_STEPS it bounds a sorter's memory
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 5000,
    sqlite3.SQLITE_LIMIT_COLUMN: 32,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
# No views: a chain of them is compiled to a statement of exponential size. No temporary tables: their size has no limit.
# REINDEX is a part of CREATE INDEX.
ACTION_NAMES = """SELECT READ RECURSIVE INSERT UPDATE DELETE TRANSACTION SAVEPOINT CREATE_TABLE CREATE_INDEX CREATE_TRIGGER
DROP_TABLE DROP_INDEX DROP_TRIGGER REINDEX"""
ACTIONS = {getattr(sqlite3, f"SQLITE_{name}") for name in ACTION_NAMES.split()}
# Pure functions of their arguments and of the database. No trim: with two arguments one call takes quadratic time.
FUNCTION_NAMES = """abs avg changes char coalesce count cume_dist dense_rank first_value format glob group_concat hex ifnull
iif instr lag last_insert_rowid last_value lead length like lower max min nth_value ntile nullif percent_rank printf quote
rank replace round row_number sign substr substring sum total total_changes typeof unicode upper zeroblob"""
FUNCTIONS = set(FUNCTION_NAMES.split())

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
    """One episode: at most `MAX_TURNS` tool calls on a database of its own; reward 1 for submitting the right answer."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:")
        self._answer = ""
        self._ended = True  # until the first reset
        self.turns = 0
        self.success = False

    def reset(self, database_seed: int, answer: str, **_: Any) -> str:
        """Build the database of `database_seed`; `answer` is what `submit_answer` should get."""
        self._connection.close()
        self._connection = open_database(int(database_seed))
        self._answer = str(answer)
        self._ended, self.turns, self.success = False, 0, False
        return "The database is open."

    def list_tables(self) -> str:
        """List the tables of the database.

        Returns:
            One name a line.
        """
        self._take_turn()
        return run(self._connection, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")

    def describe_table(self, table: str) -> str:
        """Show the statements that made a table, its indexes and its triggers.

        Args:
            table: The table's name.

        Returns:
            One SQL statement a line.
        """
        self._take_turn()
        made = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type <> 'table', name"
        text = run(self._connection, made, (table,))
        return text if text != "sql" else _cut(f"OperationalError: no such table: {_cell(table)}", MAX_TEXT)

    def run_query(self, query: str) -> str:
        """Run one SQL statement.

        Args:
            query: The statement, in the dialect of SQLite.

        Returns:
            The column names and the rows, the number of changed rows, or the error.
        """
        self._take_turn()
        return run(self._connection, query)

    def submit_answer(self, answer: str) -> str:
        """Give the answer to the question. This ends the task.

        Args:
            answer: The number or the name alone.

        Returns:
            Whether the answer is right.
        """
        given = str(answer)
        self._take_turn()
        self._ended, self.success = True, is_right(given, self._answer)
        return "The answer is right." if self.success else "The answer is wrong."

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def over(self) -> bool:
        return self._ended or self.turns >= MAX_TURNS

    def _take_turn(self) -> None:
        if self.over:
            raise ValueError("The episode is over.")
        self.turns += 1


def run(connection: sqlite3.Connection, query: str, parameters: tuple[Any, ...] = ()) -> str:
    """Rows under their column names, the number of changed rows (those of triggers included), or `ErrorType: message`."""
    if not isinstance(query, str):
        return "TypeError: the query must be text"
    ticks = itertools.count(1)
    connection.set_progress_handler(lambda: next(ticks) * 1000 > MAX_STEPS, 1000)
    changed = connection.total_changes
    try:
        if len(query) <= LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH] and copies(query) > MAX_COPIES:
            raise sqlite3.OperationalError("nested SELECTs repeat their names too often")
        with closing(connection.execute(query, parameters)) as cursor:
            rows = cursor.fetchmany(MAX_ROWS + 1)
            columns = [column[0] for column in cursor.description or ()]
    except (sqlite3.Error, UnicodeError, OverflowError, MemoryError) as error:  # MemoryError: over LIMIT_VDBE_OP
        return _cut(f"{type(error).__name__}: {str(error) or 'the statement is too large'}", MAX_TEXT)
    if not columns:
        return f"OK, {connection.total_changes - changed} rows changed"
    lines = [" | ".join(map(_cell, row)) for row in [columns, *rows[:MAX_ROWS]]]
    if len(rows) > MAX_ROWS:
        lines.append(f"(the first {MAX_ROWS} rows; there are more)")
    return _cut("\n".join(lines), MAX_TEXT)


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
    _guard(connection)
    return connection


def dataset_rows(count: int, seed: int = 0, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows with the columns `prompt`, `database_seed` and `answer`. Held-out databases are those with seeds divisible by 10."""
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
            rows.append({"prompt": prompt, "database_seed": database_seed, "answer": str(answers[0][0])})
    return rows


def is_right(given: str, answer: str) -> bool:
    """Whether the two are equal as numbers, or as names whatever the case."""
    try:
        return float(given[:100].replace(",", "")) == float(answer)
    except ValueError:
        return given.strip().casefold() == answer.casefold()


TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*]|[\w$\x80-\U0010ffff]+(?:\s*\.)?""", re.DOTALL
)
KEYWORD_NAMES = "and as asc by desc else end from in is join not null on or order then when where"
KEYWORDS = set(KEYWORD_NAMES.split())


def copies(query: str) -> int:
    """An upper bound of how often SQLite copies one expression or one common table into another when it compiles `query`.

    A chain of n nested SELECTs that each name the last one's column twice grows to 2^n copies, before any step is counted:
    400 characters took 17 s and 3.7 GB. The product over the SELECTs of 1 + (uses of the name that is used most) bounds it.
    """
    product, uses = 1, Counter[str]()
    for token in [*TOKEN.findall(query.lower()), "select"]:
        if token == "select":
            product *= 1 + max(uses.values(), default=0)
            uses.clear()
        elif token not in KEYWORDS and not token.startswith(("--", "/*")) and not token.endswith("."):
            uses[token.strip("'\"`[]")] += 1
    return product


def _guard(connection: sqlite3.Connection) -> None:
    """Let statements do only what `ACTIONS` and `FUNCTIONS` name, within `LIMITS`."""
    virtual_tables, other_functions = _built_in()

    def authorize(action: int, name: str | None, function: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_FUNCTION:
            allowed = function in FUNCTIONS
        elif action == sqlite3.SQLITE_READ:  # virtual tables show the host's build, and EXPLAIN shows their addresses
            allowed = name not in virtual_tables and not str(name).startswith(("pragma_", "json"))  # made on first use
        else:
            allowed = action in ACTIONS
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    for name, arguments in other_functions:  # the authorizer is not asked about functions in a column's DEFAULT
        connection.create_function(name, arguments, _refuse)
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(authorize)


@cache
def _built_in() -> tuple[set[str], set[tuple[str, int]]]:
    """This SQLite's virtual tables, and its functions that `FUNCTIONS` does not name with their numbers of arguments."""
    with closing(sqlite3.connect(":memory:")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
        functions = set(connection.execute("SELECT name, max(narg, -1) FROM pragma_function_list"))  # -1: any number
    return tables, {(name, arguments) for name, arguments in functions if name not in FUNCTIONS}


def _refuse(*_: Any) -> None:
    raise ValueError("This function is denied.")


def _day(rng: random.Random) -> str:
    return f"202{rng.randint(1, 4)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _cell(value: Any) -> str:
    """A value on one line."""
    text = "NULL" if value is None else f"X'{value.hex()}'" if isinstance(value, bytes) else str(value)
    return _cut(re.sub(r"[\x00-\x1f\x7f]", lambda found: repr(found[0])[1:-1], text), MAX_CELL)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
