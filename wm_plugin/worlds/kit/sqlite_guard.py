"""Runs untrusted SQL on a real SQLite: restricts what statements may do and how much, and returns their results as text.

Limits count work, so the same statement on the same database always gives the same text. A clock behind them stops statements
whose steps are slow, far beyond the time of any honest statement.
"""

import itertools
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any

MAX_STEPS = 101_000  # virtual-machine steps of a statement; most take nanoseconds, the slowest that we know 0.2 ms
MAX_SECONDS = 10.0
MAX_COPIES = 200_000  # see `copies`: about 0.2 s and 30 MB
# Of all connections of the process together: if `copies` errs, SQLite raises a MemoryError before the host runs out of memory. A
# thousand databases of episodes and their statements need half of it.
MAX_HEAP = 2 << 30
MAX_ROWS, MAX_CELL, MAX_TEXT = 20, 300, 4000  # rows that are shown; characters of a cell and of an observation

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
CHECKED = 50  # steps between two looks at the count and the clock
CONVERSION = re.compile(r"%([-+ #!,.*l0-9]*)(.?)", re.DOTALL)  # of printf
LEADING = re.compile(r"\s*[-+]?0*([0-9]*)")
PRECISION = re.compile(r"(?<=\.)[0-9]+")
# Of SQLite's tokenizer: comments, the parameters `$a(')` and `:a(--)`, quoted texts and names, stars that mean all columns, and
# words with the point of a qualifier, but not of a number: `SELECT .5`.
TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|[$@:\#](?:[\w$\x80-\U0010ffff]|::)+(?:\([^ \t\n\v\f\r)]*)?"""
    r"""|(?:'[^']*')+|(?:"[^"]*")+|(?:`[^`]*`)+|\[[^]]*(?:]|\Z)|\*(?=\s*(?:,|from|-|/|\ufeff))"""
    r"""|[\w$\x80-\U0010ffff]+(?:\s*\.(?!\s*\d))?""",
    re.DOTALL | re.ASCII,
)
QUOTES = str.maketrans("", "", "'\"`[]")
# Without those that may be names: asc, by, desc, end.
KEYWORD_NAMES = "and as else from in is join not null on or order then when where"
KEYWORDS = set(KEYWORD_NAMES.split())


def guard(connection: sqlite3.Connection) -> None:
    """Restrict a connection's statements to `ACTIONS` and `FUNCTIONS`, within `LIMITS`."""
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
    for name in ("printf", "format"):
        connection.create_function(name, -1, _Printf(), deterministic=True)
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    connection.execute(f"PRAGMA hard_heap_limit = {MAX_HEAP}")  # of the process: it only lowers a limit
    connection.set_authorizer(authorize)


def run(connection: sqlite3.Connection, query: str, parameters: Sequence[Any] = ()) -> str:
    """Run a statement.

    Returns:
        Its rows under their column names, the number of changed rows (with those that triggers change), or `ErrorType: message`.
    """
    if not isinstance(query, str):
        return "TypeError: the query must be text"
    limit_work(connection, MAX_STEPS)
    changed = connection.total_changes
    try:
        if len(query) <= LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH] and copies(query) > MAX_COPIES:
            raise sqlite3.OperationalError("nested SELECTs repeat their names too often")
        with closing(connection.execute(query, parameters)) as cursor:
            rows = cursor.fetchmany(MAX_ROWS + 1)
            columns = [column[0] for column in cursor.description or ()]
    except (sqlite3.Error, UnicodeError, OverflowError, MemoryError) as error:  # MemoryError: over LIMIT_VDBE_OP
        return cut(f"{type(error).__name__}: {str(error) or 'the statement is too large'}", MAX_TEXT)
    if not columns:
        if all(token.startswith(("--", "/*")) for token in TOKEN.findall(query)):
            return "ProgrammingError: the query has no statement"
        return f"OK, {connection.total_changes - changed} rows changed"
    lines = [" | ".join(map(cell, row)) for row in [columns, *rows[:MAX_ROWS]]]
    if len(rows) > MAX_ROWS:
        lines.append(f"(the first {MAX_ROWS} rows; there are more)")
    return cut("\n".join(lines), MAX_TEXT)


def limit_work(connection: sqlite3.Connection, steps: int) -> None:
    """Interrupt the next statements of a connection after `steps` steps together, or after `MAX_SECONDS`."""
    checks, deadline = itertools.count(CHECKED, CHECKED), time.monotonic() + MAX_SECONDS
    connection.set_progress_handler(lambda: next(checks) >= steps or time.monotonic() > deadline, CHECKED)


def copies(query: str) -> int:
    """Bound how often SQLite copies an expression or a common table into another when it compiles `query`.

    A chain of n nested SELECTs that each name the last one's column twice grows to 2^n copies, before any step is counted:
    400 characters took 17 s and 3.7 GB. The product over the SELECTs of 1 + (uses of the name that is used most, a star being a
    use of each) bounds it, times the largest factor, since a WHERE may repeat an alias of its own SELECT.
    """
    product, largest, stars, uses = 1, 1, 0, Counter[str]()
    folded = query.encode(errors="replace").lower().decode()  # like SQLite, ASCII letters only
    for token in [*TOKEN.findall(folded), "select"]:
        word = token.lstrip("\ufeff")  # white space to SQLite where a word begins
        if word == "select":
            factor = 1 + stars + max(uses.values(), default=0)
            product, largest = product * factor, max(largest, factor)
            stars = 0
            uses.clear()
        elif word == "*":
            stars += 1
        elif word not in KEYWORDS and not word.startswith(("--", "/*")) and not word.endswith("."):
            uses[word.translate(QUOTES)] += 1
    return product * largest


@cache
def _built_in() -> tuple[set[str], set[tuple[str, int]]]:
    """Return this SQLite's virtual tables, and the functions that `FUNCTIONS` does not name with their numbers of arguments."""
    with closing(sqlite3.connect(":memory:")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
        functions = set(connection.execute("SELECT name, max(narg, -1) FROM pragma_function_list"))  # -1: any number
    return tables, {(name, arguments) for name, arguments in functions if name not in FUNCTIONS}


def _refuse(*_: Any) -> None:
    raise ValueError("This function is denied.")


class _Printf:
    """SQLite's own `printf`, in which a repeated character ends at the limit of a text's length.

    In SQLite 3.40, `%.2147483646c` takes 14 s and cannot be interrupted, since it is one step, although the text is too long
    from the 2001st character on. The precision of `%c` is therefore cut to one more than the limit, which is still too long.
    """

    _plain: sqlite3.Connection | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._plain is None:  # it lives as long as the connection that calls it
            self._plain = sqlite3.connect(":memory:", check_same_thread=False)
            self._plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMITS[sqlite3.SQLITE_LIMIT_LENGTH])
            self._plain.text_factory = lambda raw: raw.decode(errors="replace")
        marks = ", ".join("?" * len(arguments))
        try:
            return self._plain.execute(f"SELECT printf({marks})", _with_short_repeats(arguments)).fetchone()[0]
        except sqlite3.DataError:  # newer SQLites say so, older ones give NULL
            raise OverflowError from None  # "string or blob too big"

    def __del__(self) -> None:
        if self._plain is not None:
            self._plain.close()


def _with_short_repeats(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of `printf` with every precision of `%c` cut to `most`."""
    most = LIMITS[sqlite3.SQLITE_LIMIT_LENGTH] + 1
    if not arguments or not isinstance(arguments[0], str | bytes):  # a number has no conversions
        return list(arguments)
    values, place = list(arguments), 1  # of the next argument

    def shorten(match: re.Match[str]) -> str:
        nonlocal place
        flags, kind = match.groups()
        stars = flags.count("*")
        if kind == "c":
            flags = PRECISION.sub(lambda digits: str(_at_most(digits[0], most)), flags)
            if ".*" in flags and place + stars - 1 < len(values):
                values[place + stars - 1] = _at_most(values[place + stars - 1], most)
        place += stars + (kind not in "%n")
        return f"%{flags}{kind}"

    text = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode(errors="replace")
    shortened = CONVERSION.sub(shorten, text)
    if shortened != text:
        values[0] = shortened
    return values


def _at_most(value: Any, most: int) -> Any:
    """Return the value, or `most` if SQLite reads a larger number in it, of either sign."""
    if isinstance(value, str | bytes):
        digits = LEADING.match(value if isinstance(value, str) else value.decode(errors="replace"))
        size = int(digits[1][:9] or 0) if digits else 0
    else:
        size = abs(value or 0)
    return most if size > most else value


def cell(value: Any) -> str:
    """Write a value on one line."""
    text = "NULL" if value is None else f"X'{value.hex()}'" if isinstance(value, bytes) else str(value)
    return cut(re.sub(r"[\x00-\x1f\x7f]", lambda match: repr(match[0])[1:-1], text), MAX_CELL)


def cut(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, with its length if it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
