"""The databases of the world sql: opened from a seed, changed by statements, and compared."""

import random
import re
import sqlite3
from contextlib import closing

from wm_plugin.environments.kit.sqlite_guard import guard, run
from wm_plugin.environments.sql.company import COMPANY
from wm_plugin.environments.sql.databases import OTHERS
from wm_plugin.errors import UserError

DATABASES = {"company": COMPANY, **OTHERS}
SEPARATOR = ";\n"  # between the statements of a change
ERROR = r"[A-Za-z]+Error: "
State = tuple[list[str], dict[str, list[str]]]  # see `state`
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
    # Any thread, one at a time: an async host may run a tool in another one than `reset`.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(f"{PRAGMAS}{schema}BEGIN;")
    for table, rows in fill(random.Random(seed)).items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.executescript(triggers)  # commits first; what is there did not run through them
    guard(connection)
    return connection


def after(seed: int, database: str, changes: str) -> State:
    """The state of a database after statements, which must all go well."""
    with closing(open_database(seed, database)) as connection:
        for statement in changes.split(SEPARATOR):
            if re.match(ERROR, text := run(connection, statement)):
                raise UserError(f"An SQL task's column `changes` fails on {statement[:60]!r}: {text[:80]}")
        return read_state(connection)


def read_state(connection: sqlite3.Connection) -> State:
    """The schema, and the rows of each table in any order: those of logs without their ids, which follow from the way taken.

    What is not committed is rolled back. The connection has no guard afterwards.
    """
    connection.set_progress_handler(None, 0)
    connection.set_authorizer(None)
    if connection.in_transaction:
        connection.rollback()
    schema = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    rows = {}
    for kind, name, _ in schema:
        if kind == "table":
            quoted, skipped = name.replace('"', '""'), name.endswith("_log")
            rows[name] = sorted(repr(row[skipped:]) for row in connection.execute(f'SELECT * FROM "{quoted}"'))
    return sorted(map(repr, schema)), rows


def reached(connection: sqlite3.Connection, wanted: State) -> bool:
    """Whether `state` is the wanted one. A table that cannot be read, such as one whose columns fail to compute, is not."""
    try:
        return read_state(connection) == wanted
    except sqlite3.Error:
        return False
