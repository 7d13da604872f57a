"""What one step of SQLite can cost, how the clock stops slow steps, and that an honest statement notices neither."""

import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import CASES
from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit import sqlite_guard
from wm_plugin.worlds.kit.sqlite_guard import LIMITS, guard, run
from wm_plugin.worlds.sql import SqlEnvironment, databases
from wm_plugin.worlds.sql.databases import has_state, open_database, read_state, state_after

NUMBERS = "WITH RECURSIVE z (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM z LIMIT 20000) "


def plain() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMITS[sqlite3.SQLITE_LIMIT_LENGTH])
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    return connection


@pytest.fixture
def database() -> Any:
    with closing(open_database(7)) as connection:
        yield connection


REPEATS = [
    "SELECT length(printf('%.2147483646c', 'x')) n",
    "SELECT length(format('%.*c', 2147483646, 'x')) n",
    "SELECT length(printf('%d%%%*d%1900.*c', 1, 5, 2, '2147483646', 'x')) n",
    "SELECT length(printf('%-+ #!0,9.*lc', -2147483646, '€')) n",
    "SELECT length(printf('%.*c', 2147483646.5, 'x')) n",
    "SELECT length(printf(CAST('%.2147483646c' AS BLOB), 'x')) n",
    f"SELECT length(printf('{'%.2147483646c' * 100}')) n",
]


@pytest.mark.parametrize("query", REPEATS)
def test_no_single_step_takes_long(database: sqlite3.Connection, query: str) -> None:
    """SQLite 3.40 counts to two billion here, and nothing can interrupt it."""
    start = time.thread_time()
    texts = {run(database, query) for _ in range(3)}
    assert time.thread_time() - start < 1
    assert texts <= {"n\nNULL", "DataError: string or blob too big"}
    assert len(texts) == 1


@pytest.mark.parametrize("statement", CASES["repeats_in_schemas"])
def test_nor_one_in_a_schema(database: sqlite3.Connection, statement: str) -> None:
    start = time.thread_time()
    for query in (statement, "INSERT INTO t (a) VALUES (1)", "SELECT * FROM t", "UPDATE products SET stock = 1"):
        assert run(database, query)
    read_state(database)
    assert time.thread_time() - start < 1


FORMATS = st.lists(
    st.one_of(
        st.text("ab%\0é", max_size=4),
        st.builds(
            lambda *parts: "%" + "".join(parts),
            st.text("-+ #!0,", max_size=2),
            st.sampled_from(["", "7", "*", "1999", "2001", "99999"]),
            st.sampled_from(["", ".", ".3", ".*", ".1999", ".2001", ".30000"]),
            st.sampled_from(["", "l", "ll"]),
            st.sampled_from([*"cccdisfgexXoqQwzn%;", ""]),
        ),
    ),
    max_size=4,
).map("".join)
VALUES = st.lists(
    st.one_of(
        st.none(),
        st.integers(-30_000, 30_000),
        st.floats(-30_000, 30_000),
        st.text("x é", max_size=3),
        st.sampled_from(["12", " 3x", "-2000", "30000", "0009", b"7", "1e3"]),
    ),
    max_size=5,
)


OWN, GUARDED = plain(), plain()
guard(GUARDED)


@settings(max_examples=examples(500), deadline=None)
@given(FORMATS, VALUES)
def test_printf_is_that_of_sqlite(text: str, values: list[Any]) -> None:
    query = f"SELECT printf({', '.join('?' * (1 + len(values)))})"

    def result(connection: sqlite3.Connection) -> Any:
        try:
            return connection.execute(query, [text, *values]).fetchone()
        except sqlite3.Error as error:
            return type(error), str(error)

    assert result(GUARDED) == result(OWN)


def test_a_format_that_is_no_text(database: sqlite3.Connection) -> None:
    assert run(database, "SELECT printf() a, printf(NULL, 1) b, printf(5) c, printf(2.5) d, printf(x'2564', 7) e") == (
        "a | b | c | d | e\nNULL | NULL | 5 | 2.5 | 7"
    )


def test_the_clock_stops_slow_steps_and_other_threads_go_on(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_guard, "MAX_SECONDS", 0.2)
    text = "replace(hex(zeroblob(600)), '0', 'a')"
    slow = [f"({text} || x) GLOB '*[{'b' * (40 - i)}]'" for i in range(30)]  # each about 0.2 ms
    ticks, over = [0], threading.Event()

    def others() -> None:
        while not over.wait(0.005):
            ticks[0] += 1

    thread = threading.Thread(target=others)
    thread.start()
    start = time.monotonic()
    answer = run(database, f"{NUMBERS}SELECT count(*) FROM z WHERE {' OR '.join(slow)}")
    seconds = time.monotonic() - start
    over.set()
    thread.join()
    assert answer == "OperationalError: interrupted"
    assert seconds < 5
    assert ticks[0] >= 3
    assert run(database, "SELECT 1 x") == "x\n1"


def test_tables_that_grow_when_they_are_read(database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte on disk of 30 computed columns of 1,900 characters is gigabytes as text; here are 57 MB."""
    columns = "".join(f", c{i} AS (printf('%1900d', a))" for i in range(30))
    making = [f"CREATE TABLE t (a{columns})", f"{NUMBERS}INSERT INTO t SELECT 1 FROM z LIMIT 1000"]
    for statement in making:
        assert run(database, statement).startswith("OK")
    monkeypatch.setattr(databases, "STATE_TEXT", 1_000_000)
    with pytest.raises(sqlite3.DataError, match="too large"):
        read_state(database)
    monkeypatch.setattr(databases, "STATE_TEXT", 10**12)
    monkeypatch.setattr(databases, "STATE_STEPS", 20_000)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        read_state(database)
    with pytest.raises(UserError, match="`changes` leads to tables that cannot be read: interrupted"):
        state_after(7, "company", ";\n".join(making))


def test_columns_that_take_too_long_a_program_to_read(database: sqlite3.Connection) -> None:
    columns = "".join(f", c{i + 1} AS (c{i}+c{i})" for i in range(16))
    statement = f"CREATE TABLE g (c0{columns})"
    with pytest.raises(UserError, match="^An SQL task's column `changes`.* too large$"):
        SqlEnvironment().reset(database_seed=1, answer="x", changes=statement)
    target = read_state(database)
    with closing(open_database(7)) as other:
        run(other, statement)
        schema = [*map(repr, other.execute("SELECT type, name, sql FROM sqlite_master"))]
        assert not has_state(other, (sorted(schema), target[1]))


def test_tables_that_are_not_the_tasks_are_not_read(database: sqlite3.Connection) -> None:
    target = read_state(database)
    assert has_state(database, target)
    reads: list[str] = []
    database.set_trace_callback(reads.append)
    database.execute("CREATE TABLE t (a)")
    assert not has_state(database, target)
    assert reads == ["CREATE TABLE t (a)", "SELECT type, name, sql FROM sqlite_master"]


def test_changes_have_a_bound() -> None:
    row = {"database_seed": 1, "answer": "", "changes": ";\n".join(["SELECT 1"] * 101)}
    with pytest.raises(UserError, match="`changes` has 101 statements; write at most 100"):
        SqlEnvironment().reset(**row)  # type: ignore[arg-type]
