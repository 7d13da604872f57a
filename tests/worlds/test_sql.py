import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import CASES
from support.examples import examples
from wm_plugin.worlds import sql
from wm_plugin.worlds.check import texts
from wm_plugin.worlds.kit.sqlite_guard import FUNCTIONS, copies, run
from wm_plugin.worlds.sql import SqlEnvironment, dataset_rows, is_right, open_database
from wm_plugin.worlds.sql.databases import DATABASES, OTHERS

FOREVER = "WITH RECURSIVE z (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM z) "


@pytest.fixture
def database() -> sqlite3.Connection:
    return open_database(7)


@pytest.fixture
def environment() -> SqlEnvironment:
    environment = SqlEnvironment()
    environment.reset(database_seed=7, answer="42")
    return environment


def nested(depth: int, width: int) -> str:
    query = "SELECT id x FROM products"
    for _ in range(depth):
        query = f"SELECT {'+'.join(['x'] * width)} x FROM ({query})"
    return query


def chained(depth: int, width: int) -> str:
    tables = "".join(f", a{i + 1} AS (SELECT 1 FROM {','.join([f'a{i}'] * width)})" for i in range(depth))
    return f"WITH a0 AS (SELECT 1){tables} SELECT count(*) FROM a{depth} LIMIT 0"


def is_error(text: str) -> bool:
    return text.split(":")[0].endswith("Error")


def test_an_episode_from_the_question_to_the_reward() -> None:
    row = next(row for row in dataset_rows(50) if "Raise every salary" in row["prompt"][0]["content"])
    question = row["prompt"][0]["content"].split("Question: ")[1]
    department, amount = question.split(" in ")[1].split(" by ")[0], question.split(" by ")[1].split(".")[0]
    environment = SqlEnvironment()
    environment.reset(**row)
    assert environment.list_tables().split("\n")[1:] == ["departments", "employees", "orders", "products", "salary_log"]
    assert "REFERENCES departments" in environment.describe_table("employees")
    assert "CREATE TRIGGER log_salary" in environment.describe_table("employees")
    changed = environment.run_query(
        f"UPDATE employees SET salary = salary + {amount} "
        f"WHERE department_id = (SELECT id FROM departments WHERE name = '{department}')"
    )
    logged = environment.run_query("SELECT 2 * count(*) FROM salary_log").split("\n")[1]
    assert changed == f"OK, {logged} rows changed"  # each employee, and a line of the log for each
    total = environment.run_query("SELECT sum(salary) FROM employees").split("\n")[1]
    assert environment.get_reward() == 0.0
    assert environment.submit_answer(total) == "The answer is right."
    assert (environment.over, environment.success, environment.turns, environment.get_reward()) == (True, True, 7, 1.0)
    with pytest.raises(ValueError, match="over"):
        environment.list_tables()


def test_a_wrong_answer_ends_the_episode(environment: SqlEnvironment) -> None:
    assert environment.submit_answer("41") == "The answer is wrong."
    assert (environment.over, environment.get_reward()) == (True, 0.0)
    with pytest.raises(ValueError, match="over"):
        environment.submit_answer("42")
    assert not environment.success


@pytest.mark.parametrize(
    ("submission", "answer", "right"),
    [
        ("5", "5", True),
        (" 5.0 ", "5", True),
        ("1,200", "1200", True),
        ("6", "5", False),
        ("nan", "5", False),
        ("", "5", False),
        ("9" * 10**6, "5", False),
        ("1_0", "10", False),
        ("\u0665", "5", False),
        ("1e1", "10", True),
        ("-.5", "-0.5", True),
        ("1e999", "1e998", False),
        ("9" * 400, "1e999", False),
        ("inf", "infinity", False),
        ("  ada", "Ada", True),
        ("Ada is right", "Ada", False),
        ("", "Ada", False),
        ("\0", "Ada", False),
        ("5" + " " * 200, "5", True),
        ("5" + " " * 99 + "or 6", "5", False),  # no part of an answer is left out
        ("5" + "," * 99 + "0", "5", False),
        ("5." + "0" * 98 + "1", "5", False),
    ],
)
def test_answers_are_compared_as_numbers_or_names(submission: str, answer: str, right: bool) -> None:
    assert is_right(submission, answer) is right


def test_databases_are_pinned_to_their_seed() -> None:
    def content(seed: int) -> str:
        with closing(open_database(seed)) as connection:
            connection.set_authorizer(None)
            return "\n".join(connection.iterdump())

    assert hashlib.sha256(content(0).encode()).hexdigest()[:16] == "f3084d06e56310ef"
    assert len({content(seed) for seed in range(100)}) == 100


def test_constraints_and_triggers_answer(database: sqlite3.Connection) -> None:
    assert run(database, "UPDATE employees SET salary = -1") == "IntegrityError: CHECK constraint failed: salary > 0"
    assert run(database, "DELETE FROM departments") == "IntegrityError: FOREIGN KEY constraint failed"
    assert run(database, "INSERT INTO orders VALUES (99, 1, 1, 999, 'x')") == (
        "IntegrityError: CHECK constraint failed: stock >= 0"
    )
    assert run(database, "UPDATE products SET stock = 9") == "OK, 8 rows changed"
    assert run(database, "INSERT INTO orders VALUES (99, 1, 1, 4, 'x')") == "OK, 2 rows changed"
    assert run(database, "SELECT stock FROM products WHERE id = 1") == "stock\n5"
    assert run(database, "SELEC") == 'OperationalError: near "SELEC": syntax error'


def test_cells_stay_on_their_line(database: sqlite3.Connection) -> None:
    query = "SELECT 1 a, 2.5 b, NULL c, x'00ff' d, 'e' || char(10) || char(0) e, char(55296) f"
    assert run(database, query) == "a | b | c | d | e | f\n1 | 2.5 | NULL | X'00ff' | e\\n\\x00 | ���"


def test_long_output_is_cut_with_a_note(database: sqlite3.Connection) -> None:
    rows = run(database, FOREVER + "SELECT x FROM z LIMIT 50").split("\n")
    assert rows == ["x", *map(str, range(1, 21)), "(the first 20 rows; there are more)"]
    assert len(run(database, FOREVER + "SELECT x FROM z LIMIT 20").split("\n")) == 21
    assert run(database, "SELECT printf('%0900d', 0) x") == f"x\n{'0' * 300}... (900 characters)"
    wide = run(database, FOREVER + f"SELECT {', '.join(['hex(zeroblob(90))'] * 10)} FROM z LIMIT 30")
    assert wide[4000:] == f"... ({10 * 17 + 9 * 3 + 1 + 20 * (10 * 180 + 9 * 3 + 1) + 35} characters)"


@pytest.mark.parametrize("query", ["", " ;\n;", "-- SELECT 1", "/* UPDATE products SET stock = 9", ";--\n/**/"])
def test_a_query_without_a_statement_is_an_error(query: str) -> None:
    environment = SqlEnvironment()
    environment.reset(**dataset_rows(1)[0])
    assert environment.run_query(query) == "ProgrammingError: the query has no statement"
    assert (environment.metrics["invalid"], environment.metrics["effective"]) == (1, 0)


@pytest.mark.parametrize("query", ["SELECT (1", "SELECT 'a", 'SELECT "a', "SELECT [a", "SELECT `a"])
def test_an_unfinished_statement_is_an_error(query: str, database: sqlite3.Connection) -> None:
    assert re.match("OperationalError: (incomplete input|unrecognized token)", run(database, query))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT '\0'",
        "SELECT '\ud800'",
        "x" * 10**7,
        "SELECT ?",
        "SELECT 1; SELECT 2",
        "'",
        "/*",
        "(" * 4000,
        "SELECT " + "-" * 4000 + "1",
        "SELECT " + "1+" * 2000 + "1",
        "SELECT " + "(SELECT " * 300,
    ],
)
def test_malformed_queries_are_text_errors(database: sqlite3.Connection, query: str) -> None:
    text = run(database, query)
    assert is_error(text) or text.startswith("OK, 0")
    assert len(text.encode()) < 5000
    assert run(database, "SELECT 1 x") == "x\n1"


@pytest.mark.parametrize("name", DATABASES)
def test_nothing_of_the_host_can_be_reached(tmp_path: Path, name: str) -> None:
    with closing(sqlite3.connect(tmp_path / "secret.db")) as secret:
        secret.execute("CREATE TABLE secret (a)")
    with closing(open_database(1, name)) as database:
        for statement in CASES["sql_escapes"]:
            assert is_error(run(database, statement.format(folder=tmp_path))), statement
    assert [path.name for path in tmp_path.iterdir()] == ["secret.db"]


def test_no_other_function_can_be_called_even_from_a_default(database: sqlite3.Connection) -> None:
    """SQLite asks its authorizer about every function except those in a column's DEFAULT."""
    with closing(sqlite3.connect(":memory:")) as plain:
        names = {name for (name,) in plain.execute("SELECT name FROM pragma_function_list")}
    assert FUNCTIONS - {"sign", "format", "unicode"} <= names  # those three are newer than the oldest SQLite in use
    others = names - FUNCTIONS - {"->", "->>", "match"}  # operators
    assert {
        "random",
        "randomblob",
        "date",
        "strftime",
        "current_timestamp",
        "load_extension",
        "sqlite_version",
    } <= others
    for name in sorted(others):
        call = name if name.startswith("current_") else f"{name}()"
        assert is_error(run(database, f"SELECT {call}"))
        created = run(database, f"CREATE TABLE t (a, b DEFAULT ({call}))")
        inserted = run(database, "INSERT INTO t (a) VALUES (1)")
        assert is_error(created) or is_error(inserted), (name, run(database, "SELECT * FROM t"))
        run(database, "DROP TABLE t")
    assert run(database, "SELECT random()") == "OperationalError: not authorized to use function: random"
    assert run(database, "SELECT abs(-1) || upper('a') || max(1, 2) || iif(1, 'x', 'y') v") == "v\n1A2x"


def test_a_tool_may_run_in_another_thread_than_reset(environment: SqlEnvironment) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(environment.run_query, "SELECT 1 x").result() == "x\n1"


RENAMED = "".join(f'+"x:{i}"' for i in range(1, 9))  # as SQLite names the other columns x of a star
MARKED = "+".join("\ufeff" * i + "x" for i in range(9))
RUNAWAYS = [
    FOREVER + "SELECT count(*) FROM z",
    FOREVER + "SELECT count(*) FROM (SELECT zeroblob(1900) b FROM z ORDER BY b)",
    FOREVER + "SELECT count(DISTINCT printf('%1900d', x)) FROM z",
    FOREVER + "SELECT sum(x) OVER (ORDER BY printf('%1900d', x)) FROM z",
    FOREVER + "INSERT INTO salary_log SELECT x, x, x, x FROM z",
    "SELECT count(*) FROM orders a, orders b, orders c, orders d, orders e",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%0900d', 1) || replace(hex(zeroblob(900)), '0', hex(zeroblob(900)))",
    "SELECT group_concat(a.name || b.name) FROM employees a, employees b",
    nested(8, 8),
    nested(30, 2),
    nested(5, 6),
    chained(30, 2),
    chained(4, 60),
    'SELECT "+"+"+"+"+" AS "+" FROM (' * 12 + 'SELECT id "+" FROM products' + ")" * 12,
    "SELECT/*'*/x+x+x+x/*'*/x FROM (" * 9 + "SELECT 1 x" + ")" * 9,
    *(f"SELECT{dot}5{'+x' * 9} x FROM (" * 8 + "SELECT 1 x" + ")" * 8 for dot in (".", " .", "\n.", "\f . ", "/**/.")),
    f"SELECT 1 x UNION SELECT .5{'+x' * 9} x FROM (" + f"SELECT .5{'+x' * 9} x FROM (" * 7 + "SELECT 1 x" + ")" * 8,
    *(f"SELECT {'+'.join([n] * 9)} {n} FROM (" * 8 + f"SELECT 1 {n}" + ")" * 8 for n in ("by", "desc", "end")),
    f"SELECT x{RENAMED} x FROM (SELECT *{',*' * 8} FROM (" * 8 + "SELECT 1 x" + "))" * 8,
    *(
        f"SELECT $a({mark}){'+x' * 9} x FROM (" * 8 + "SELECT 1 x" + ")" * 8
        for mark in ("'", '"', "`", "[", "/*", "--")
    ),
    f"SELECT {MARKED} x FROM (" * 8 + "SELECT 1 x" + ")" * 8,
    f"\ufeffSELECT {'x+' * 9}x x FROM (" * 8 + "SELECT 1 x" + ")" * 8,
    "SELECT 1 FROM (SELECT {0} z FROM (SELECT {0} x FROM (SELECT id x FROM orders)) WHERE {1})".format(
        *(f"coalesce({','.join([name] * 60)})" for name in "xz")
    ),
]


@pytest.mark.parametrize("query", RUNAWAYS)
def test_a_runaway_stops_after_the_same_work_with_the_same_text(query: str) -> None:
    texts = set()
    for _ in range(2):
        with closing(open_database(7)) as connection:
            texts.add((run(connection, query), run(connection, query), run(connection, "SELECT total_changes() n")))
            assert run(connection, "SELECT count(*) n FROM departments") == "n\n4"
    assert len(texts) == 1
    assert is_error(texts.pop()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's peak memory, in KiB")
def test_runaways_and_resets_keep_memory_bounded(environment: SqlEnvironment) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for query in RUNAWAYS:
        run(environment._connection, query)
    runaways = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert runaways - before < 100_000
    for seed in range(1, 400):
        environment.reset(database_seed=seed, answer="")
        environment.run_query("UPDATE orders SET quantity = 1")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - runaways < 5_000


SPELLINGS = ["x", "X", '"x"', "[x]", "`x`", "\ufeffx", "q.x", "q . x", "q/**/.x", 'q."x"']
SELECTS = [
    "SELECT .5+",
    "SELECT.5+",
    "select\n.5 +",
    "SELECT/**/.5+",
    "\ufeffSELECT ",
    "SELECT DISTINCT ",
    "SELECT $a(')+",
]
LEVEL = st.tuples(st.sampled_from(SELECTS), st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=5), st.booleans())


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LEVEL, min_size=1, max_size=8))
def test_copies_bounds_the_growth(levels: list[tuple[str, list[str], bool]]) -> None:
    query, growth = "SELECT 1 x", 1
    for start, uses, star in levels:
        query, growth = f"{start}{'+'.join(uses)} x FROM ({query}) q", growth * len(uses)
        if star:
            query, growth = f'SELECT x + "x:1" x FROM (SELECT *, * FROM ({query}))', growth * 2
    assert copies(query) >= growth


@pytest.mark.skipif(sys.platform != "linux", reason="SQLite's memory is counted with the build of Linux")
def test_behind_the_count_stands_the_heap() -> None:
    """The limit is one of the process, hence another process."""
    code = """
from wm_plugin.worlds.kit import sqlite_guard
from wm_plugin.worlds.sql import open_database
sqlite_guard.MAX_COPIES, sqlite_guard.MAX_HEAP = 10**9, 32 << 20
query = "SELECT 1 x"
for _ in range(6):
    query = f"SELECT {'+'.join('x' * 9)} x FROM ({query})"
database = open_database(1)
print(sqlite_guard.run(database, query))
print(sqlite_guard.run(database, "SELECT 1 x"), sqlite_guard.run(open_database(1), "SELECT 1 x"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "MemoryError: the statement is too large\nx\n1 x\n1\n"


def test_generated_columns_cannot_grow_a_statement_without_end(database: sqlite3.Connection) -> None:
    columns = "".join(f", a{i + 1} AS (a{i}+a{i}+a{i})" for i in range(20))
    texts = [run(database, f"CREATE TABLE g (a0{columns})"), run(database, "SELECT a20 FROM g")]
    assert "MemoryError: the statement is too large" in texts  # a new SQLite says so when it makes the table
    assert run(database, "SELECT count(*) n FROM departments") == "n\n4"


def test_a_full_database_is_an_error_and_stays_usable(database: sqlite3.Connection) -> None:
    run(database, "CREATE TABLE big (x)")
    fill = FOREVER + "INSERT INTO big SELECT zeroblob(1800) FROM z LIMIT 200"
    for _ in range(2):
        assert run(database, fill) == "OK, 200 rows changed"
    run(database, fill)
    assert run(database, fill) == "OperationalError: database or disk is full"
    assert run(database, "SELECT count(*) FROM big") == "count(*)\n400"


def test_ordinary_nested_queries_are_let_through(database: sqlite3.Connection) -> None:
    for one in DATABASES["company"].questions:
        assert copies(one["sql"]) < 1000
    five = " UNION ALL ".join(["SELECT name, salary, hired_on FROM employees WHERE salary > 10 AND name <> 'x'"] * 5)
    assert not is_error(run(database, five))
    assert not is_error(run(database, chained(6, 2)))
    assert not is_error(run(database, nested(3, 6)))


def test_calls_that_say_nothing_new_are_not_effective(environment: SqlEnvironment) -> None:
    for _ in range(2):
        environment.list_tables()
        environment.describe_table("orders")
        environment.describe_table("secrets")
        environment.run_query("SELECT name FROM nowhere")
        environment.run_query("DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)")
    assert environment.metrics == {"actions": 10, "effective": 4, "invalid": 4}


def test_answers_of_any_type(environment: SqlEnvironment) -> None:
    for answer, right in ((42, True), (42.0, True), ("42", True), (None, False), (10**5000, False), (["42"], False)):
        environment.reset(database_seed=7, answer="42")
        environment.submit_answer(answer)  # type: ignore[arg-type]
        assert environment.success == right
    environment.reset(database_seed=7, answer="1")
    environment.submit_answer(True)  # type: ignore[arg-type]
    assert not environment.success  # true is no number


def content(seed: int, database: str) -> dict[str, list[tuple[Any, ...]]]:
    with closing(open_database(seed, database)) as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table}").fetchall()
            for table in sorted(DATABASES[database].tables)
        }


ROWS = {"standard": "e85311a503f1bac4", "hard-1": "cec4d1ea1d26b025", "hard-2": "2209cdbc936f4fff"}


@pytest.mark.parametrize("level", ROWS)
def test_rows_stay_as_they_are_and_every_task_is_asked(level: str) -> None:
    every = [dataset_rows(30, seed, held_out, level) for seed in (0, 1) for held_out in (False, True)]
    assert hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()[:16] == ROWS[level]
    for rows, held_out in zip(every, (False, True) * 2, strict=True):
        assert {row["database_seed"] % 10 == 0 for row in rows} == {held_out}
    of = ["company"] if level == "standard" else OTHERS
    tasks = {
        one["task"] for name in of for one in getattr(DATABASES[name], "changes" if level == "hard-2" else "questions")
    }
    texts = [row["prompt"][0]["content"].split("\n\n")[1].split(": ", 1)[1] for row in dataset_rows(200, level=level)]
    for task in tasks:
        pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(task))
        assert any(re.fullmatch(pattern, text) for text in texts), task


def test_other_databases_are_pinned_to_their_seed() -> None:
    digest = hashlib.sha256(repr([content(seed, name) for name in OTHERS for seed in range(5)]).encode())
    assert digest.hexdigest()[:16] == "747ccbe77edd44cc"
    for name in OTHERS:
        assert all(rows or table.endswith("_log") for table, rows in content(3, name).items())
        with closing(open_database(3, name)) as connection:
            connection.set_authorizer(None)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.parametrize("level", ROWS)
def test_the_expert_solves_every_kind_of_row_by_asking(level: str) -> None:
    environment = SqlEnvironment()
    for row in [*dataset_rows(40, seed=1, level=level), *dataset_rows(10, seed=1, held_out=True, level=level)]:
        texts(environment, row, sql.expert())
        assert environment.success, row
        assert (environment.metrics["invalid"], environment.metrics["effective"]) == (0, environment.turns)
    environment.reset(database_seed=7, answer="42")
    assert sql.expert()(environment) is None


CHANGE = {
    "database_seed": 11,
    "database": "bank",
    "answer": "",
    "changes": "UPDATE accounts SET balance = balance + 5 WHERE kind = 'savings'",
}


@pytest.mark.parametrize(
    ("statements", "success"),
    [
        ([CHANGE["changes"]], True),
        (["BEGIN", CHANGE["changes"], "COMMIT"], True),
        (["UPDATE accounts SET balance = balance + 5 WHERE kind = 'savings' AND id > 5",
          "UPDATE accounts SET balance = 5 + balance WHERE kind = 'savings' AND id <= 5"], True),
        (["SELECT * FROM nothing", "UPDATE accounts SET balance = -1", CHANGE["changes"]], True),
        (["CREATE TABLE mine (x)", "DROP TABLE mine", CHANGE["changes"]], True),
        ([], False),
        (["BEGIN", CHANGE["changes"]], False),
        ([CHANGE["changes"], CHANGE["changes"]], False),
        ([CHANGE["changes"], "UPDATE customers SET city = 'Rome' WHERE id = 1"], False),
        (["UPDATE accounts SET balance = balance + 6 WHERE kind = 'savings'",
          "UPDATE accounts SET balance = balance - 1 WHERE kind = 'savings'"], False),  # what the log has stays
        ([CHANGE["changes"], "CREATE TABLE mine (x)"], False),
        ([CHANGE["changes"], "DROP TRIGGER keep_balance_log"], False),
        ([CHANGE["changes"], "DROP TABLE balance_log"], False),
        ([CHANGE["changes"], "CREATE TABLE pragma_x (x)"], False),
        ([CHANGE["changes"], "CREATE TABLE odd (a, b AS (abs(a)))", "INSERT INTO odd (a) VALUES (-9223372036854775808)"], False),
        ([CHANGE["changes"], 'CREATE TABLE "a""b; --" (x)'], False),
    ],
)  # fmt: skip
def test_changes_are_judged_by_the_final_tables(statements: list[str], success: bool) -> None:
    environment = SqlEnvironment()
    environment.reset(**CHANGE, max_turns=20)  # type: ignore[arg-type]
    for statement in statements:
        environment.run_query(statement)
    assert environment.submit_answer("done") == f"The database is {'' if success else 'not '}as wanted."
    assert (environment.over, environment.success, environment.get_reward()) == (True, success, float(success))
    environment.reset(**CHANGE)  # type: ignore[arg-type]
    assert environment.run_query("SELECT count(*) FROM balance_log").endswith("\n0")


def test_triggers_and_constraints_of_other_databases_answer() -> None:
    with closing(open_database(11, "bank")) as bank:
        run(bank, CHANGE["changes"])
        assert run(bank, "DELETE FROM balance_log") == "IntegrityError: the log cannot be changed"
        assert run(bank, "UPDATE balance_log SET change = 0") == "IntegrityError: the log cannot be changed"
        assert run(bank, "INSERT INTO transfers VALUES (99, 1, 1, 5, 'x')") == (
            "IntegrityError: CHECK constraint failed: from_id <> to_id"
        )
        assert run(bank, "INSERT INTO transfers VALUES (99, 1, 2, 100000, 'x')") == (
            "IntegrityError: CHECK constraint failed: balance >= 0"
        )
    with closing(open_database(11, "cinema")) as cinema:
        assert run(cinema, "INSERT INTO tickets VALUES (99, 1, 'Ada', 1000)") == (
            "IntegrityError: not enough seats are left"
        )
        assert run(cinema, "DELETE FROM films") == "IntegrityError: FOREIGN KEY constraint failed"
