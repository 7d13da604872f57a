"""The databases of the environment `sql`: opens one from a seed, reads its state, and compares states."""

import random
import re
import sqlite3
from contextlib import closing

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.sqlite_guard import guard, limit_work, run
from wm_plugin.worlds.sql.company import COMPANY
from wm_plugin.worlds.sql.databases import OTHERS

DATABASES = {"company": COMPANY, **OTHERS}
SEPARATOR = ";\n"  # between the statements of a change
ERROR = r"[A-Za-z]+Error: "
ERRORS = (  # whose names begin an answer of `sqlite_guard.run`
    *(
        "DataError",
        "DatabaseError",
        "IntegrityError",
        "InterfaceError",
        "InternalError",
        "NotSupportedError",
        "OperationalError",
    ),
    *("ProgrammingError", "MemoryError", "OverflowError", "TypeError", "UnicodeDecodeError", "UnicodeEncodeError"),
)
MAX_CHANGES = 100  # statements of a task
STATE_STEPS, STATE_TEXT = (
    5_000_000,
    20_000_000,
)  # steps and characters of reading a state; a full database needs a third
State = tuple[list[str], dict[str, list[str]]]  # see `read_state`
PRAGMAS = """
PRAGMA foreign_keys = ON;
PRAGMA temp_store = MEMORY;
PRAGMA max_page_count = 256;
"""


def tables(database: str) -> list[str]:
    """The names of a database's tables."""
    return sorted(re.findall(r"CREATE TABLE (\w+)", DATABASES[database].schema))


def open_database(seed: int, database: str = "company") -> sqlite3.Connection:
    """A new guarded in-memory database whose content follows from `seed`."""
    schema, triggers, fill, *_ = DATABASES[database]
    # Used from one thread at a time, but not always the same one: a host may run a tool in another thread than `reset`.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(f"{PRAGMAS}{schema}BEGIN;")
    for table, rows in fill(random.Random(seed)).items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.executescript(triggers)  # commits first, so the rows above have not fired them
    guard(connection)
    return connection


def state_after(seed: int, database: str, changes: str) -> State:
    """The state of a database after statements.

    Raises:
        UserError: one of them fails, they are too many, or what they lead to cannot be read.
    """
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
    """The schema, and the sorted rows of each table. Rows of logs lack their ids, which depend on the order of the changes.

    Uncommitted changes are rolled back, and the connection is without its authorizer afterwards.

    Raises:
        sqlite3.Error, MemoryError: a table takes more than `STATE_STEPS` or has more than `STATE_TEXT` characters (columns that
            are computed can turn the megabyte of a database into gigabytes), or a column fails to compute.
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
    """Whether the database is in `state`. False if a table cannot be read, for example because a column fails to compute."""
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
