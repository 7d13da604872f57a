"""The databases of the world `sql`: what `databases.yaml` describes, filled from a seed and opened in memory."""

import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.described import described
from wm_plugin.worlds.kit.sqlite_guard import guard, limit_work, run

SEPARATOR = ";\n"  # between the statements of a change
ERROR = r"[A-Za-z]+Error: "
ERRORS = (  # with which an answer of `run` may begin
    *("DataError", "DatabaseError", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError"),
    *("OperationalError", "ProgrammingError", "MemoryError", "OverflowError", "TypeError"),
    *("UnicodeDecodeError", "UnicodeEncodeError"),
)
MAX_CHANGES = 100  # statements of a task
# Steps and characters of reading a state; a full database needs a third.
STATE_STEPS, STATE_TEXT = 5_000_000, 20_000_000
PRAGMAS = "PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY; PRAGMA max_page_count = 256;"

DESCRIBED = described("sql/databases.yaml")
WORDS = {kind: words.split() for kind, words in DESCRIBED["words"].items()}
Rows = list[tuple[Any, ...]]
State = tuple[list[str], dict[str, list[str]]]  # see `read_state`


class Database(NamedTuple):
    """The description of a database; `fill` makes the rows of each table in order."""

    fill: Callable[[random.Random], dict[str, Rows]]
    tables: dict[str, str]
    triggers: list[str]
    picks: dict[str, str]
    questions: list[dict[str, Any]]
    changes: Sequence[dict[str, Any]] = ()
    log: str = ""

    @property
    def statements(self) -> list[str]:
        """The statements that make the triggers. Entries of the log cannot be removed or changed."""
        triggers = list(self.triggers)
        if self.log:
            stop = f"ON {self.log} BEGIN SELECT RAISE(ABORT, 'the log cannot be changed');"
            triggers += [f"keep_{self.log} BEFORE DELETE {stop}", f"freeze_{self.log} BEFORE UPDATE {stop}"]
        return [f"CREATE TRIGGER {trigger} END;" for trigger in triggers]


def day(rng: random.Random) -> str:
    return f"202{rng.randint(1, 4)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _titles(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{adjective} {noun}" for adjective in WORDS["adjectives"] for noun in WORDS["nouns"]], count)


def _fill_company(rng: random.Random) -> dict[str, Rows]:
    departments: Rows = [
        (i, name, rng.choice(WORDS["cities"])) for i, name in enumerate(rng.sample(WORDS["departments"], 4), 1)
    ]
    employees: Rows = [
        (i, name, rng.randint(1, 4), rng.randint(1, i - 1) if i > 1 else None, rng.randint(24, 96) * 100, day(rng))
        for i, name in enumerate(rng.sample(WORDS["people"], rng.randint(16, 24)), 1)
    ]
    names = enumerate(rng.sample(WORDS["products"], 8), 1)
    products: Rows = [(i, name, rng.randint(2, 90), rng.randint(0, 60)) for i, name in names]
    orders: Rows = [
        (i, rng.randint(1, len(products)), rng.randint(1, len(employees)), rng.randint(1, 12), day(rng))
        for i in range(1, rng.randint(16, 32))
    ]
    return {"departments": departments, "employees": employees, "products": products, "orders": orders}


def _fill_library(rng: random.Random) -> dict[str, Rows]:
    authors = rng.sample(WORDS["people"], 5)
    names = enumerate(rng.sample(WORDS["people"], rng.randint(9, 13)), 1)
    members: Rows = [(i, name, rng.choice(WORDS["cities"][:4])) for i, name in names]
    books: Rows = [(i, title, rng.choice(authors), rng.randint(0, 4)) for i, title in enumerate(_titles(rng, 12), 1)]
    loans: Rows = [
        (i, rng.randint(1, 12), rng.randint(1, len(members)), day(rng), day(rng) if rng.random() < 0.6 else None)
        for i in range(1, rng.randint(24, 36))
    ]
    fines: Rows = [
        (i, rng.randint(1, len(members)), rng.randint(1, 30), rng.randint(0, 1)) for i in range(1, rng.randint(12, 18))
    ]
    return {"members": members, "books": books, "loans": loans, "fines": fines}


def _fill_cinema(rng: random.Random) -> dict[str, Rows]:
    seats = rng.sample(range(40, 90), 4)
    halls: Rows = [(i, name, many) for i, (name, many) in enumerate(zip("ABCD", seats, strict=True), 1)]
    genres = ["comedy", "crime", "drama", "history"]
    titles = enumerate(_titles(rng, 8), 1)
    films: Rows = [(i, title, rng.choice(genres), rng.randint(75, 190)) for i, title in titles]
    screenings: Rows = [
        (i, rng.randint(1, 8), rng.randint(1, 4), day(rng), rng.randint(5, 15)) for i in range(1, rng.randint(16, 24))
    ]
    buyers = rng.sample(WORDS["people"], 9)
    tickets: Rows = [
        (i, rng.randint(1, len(screenings)), rng.choice(buyers), rng.randint(1, 6))
        for i in range(1, rng.randint(30, 44))
    ]
    sold = [sum(count for _, screening, _, count in tickets if screening == place) for place, *_ in screenings]
    screenings = [(*screening, count) for screening, count in zip(screenings, sold, strict=True)]
    return {"halls": halls, "films": films, "screenings": screenings, "tickets": tickets}


def _fill_bank(rng: random.Random) -> dict[str, Rows]:
    customers: Rows = [
        (i, name, rng.choice(WORDS["cities"][:4])) for i, name in enumerate(rng.sample(WORDS["people"], 10), 1)
    ]
    accounts: Rows = [
        (i, rng.randint(1, 10), rng.choice(["current", "savings"]), rng.randint(0, 900))
        for i in range(1, rng.randint(16, 22))
    ]
    pairs = [rng.sample(range(1, len(accounts) + 1), 2) for _ in range(rng.randint(18, 28))]
    transfers: Rows = [(i, *pair, rng.randint(5, 200), day(rng)) for i, pair in enumerate(pairs, 1)]
    return {"customers": customers, "accounts": accounts, "transfers": transfers}


_FILLS = {"company": _fill_company, "library": _fill_library, "cinema": _fill_cinema, "bank": _fill_bank}
DATABASES = {name: Database(fill, **DESCRIBED[name]) for name, fill in _FILLS.items()}
OTHERS = [name for name in DATABASES if name != "company"]  # of the harder levels


def open_database(seed: int, database: str = "company") -> sqlite3.Connection:
    """Open a new guarded in-memory database whose content follows from `seed`."""
    described = DATABASES[database]
    # Used from one thread at a time, but not always the same one: a host may run a tool in another thread than `reset`.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    tables = "".join(f"CREATE TABLE {name} ({columns});" for name, columns in described.tables.items())
    connection.executescript(f"{PRAGMAS}{tables}BEGIN;")
    for table, rows in described.fill(random.Random(seed)).items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.executescript("".join(described.statements))  # commits first, so the rows above fire no trigger
    guard(connection)
    return connection


def state_after(seed: int, database: str, changes: str) -> State:
    """Return the state of a database after the statements of a task."""
    statements = changes.split(SEPARATOR)
    if len(statements) > MAX_CHANGES:
        raise UserError(f"An SQL task's column `changes` has {len(statements)} statements; write at most {MAX_CHANGES}")
    with closing(open_database(seed, database)) as connection:
        for statement in statements:
            if re.match(ERROR, text := run(connection, statement)):
                raise UserError(f"An SQL task's column `changes` fails on {statement[:60]!r}: {text[:80]}")
        try:
            return read_state(connection)
        except (sqlite3.Error, MemoryError) as error:
            reason = str(error) or "they are too large"
            raise UserError(f"An SQL task's column `changes` leads to tables that cannot be read: {reason}") from None


def read_state(connection: sqlite3.Connection) -> State:
    """Return the schema and the sorted rows of each table. Rows of logs lack their ids, which depend on the order of changes.

    Rolls uncommitted changes back and removes the connection's authorizer.

    Raises:
        sqlite3.Error, MemoryError: a table takes more than `STATE_STEPS` or has more than `STATE_TEXT` characters (computed
            columns can turn the megabyte of a database into gigabytes), or a column fails to compute.
    """
    schema, left = _schema(connection), STATE_TEXT
    rows = {}
    for kind, name, _ in schema:
        if kind == "table":
            quoted, skipped, texts = name.replace('"', '""'), name.endswith("_log"), list[str]()
            for row in connection.execute(f'SELECT * FROM "{quoted}"'):
                texts.append(repr(row[skipped:]))
                left -= len(texts[-1])
                if left < 0:
                    raise sqlite3.DataError("the tables are too large")
            rows[name] = sorted(texts)
    return sorted(map(repr, schema)), rows


def has_state(connection: sqlite3.Connection, state: State) -> bool:
    """Return whether the database is in `state`; False if a table cannot be read."""
    try:
        return sorted(map(repr, _schema(connection))) == state[0] and read_state(connection) == state
    except (sqlite3.Error, MemoryError):
        return False


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    limit_work(connection, STATE_STEPS)
    connection.set_authorizer(None)
    if connection.in_transaction:
        connection.rollback()
    return connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
