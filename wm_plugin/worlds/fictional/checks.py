"""What must hold of a fictional world and of a question before anybody is asked: nothing leaks, and nothing contradicts itself.

* The *withheld* cells are those of a question's right table beside the key. No search shows one of them, whatever the query: the
  check reads all titles and teasers, and a search shows nothing else.
* No page holds the key and all withheld cells of a row, so an answer takes at least two pages for each row.
* Every fact that a page states is the database's, so no two pages contradict each other. Facts are read from the pages' words.
* Realism: each value has its column's type, range and step, dates are days, nothing is earlier than its `not_before`, and what
  `follows` another attribute rises with it.
* Names are new: none is a word of the specification or of a document, and each occurs once.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from wm_plugin.worlds.fictional.pages import Page, holds, known, plain, read_facts, stated
from wm_plugin.worlds.fictional.score import Table, normalised
from wm_plugin.worlds.fictional.spec import Attribute
from wm_plugin.worlds.fictional.tables import TRADES, Row, Tables, Value, as_number, ordinal
from wm_plugin.worlds.kit.search import tokens

_TRADES = set(tokens(" ".join(TRADES)))  # words that are no names by themselves
_ENOUGH = 30  # rows to tell whether one attribute rises with another


def problems(tables: Tables, pages: Mapping[str, Page]) -> Iterator[str]:
    """Yield a line for each contradiction, impossible value and known name of a world."""
    yield from contradictions(tables, pages)
    yield from unreal(tables)
    yield from known_names(tables)


def contradictions(tables: Tables, pages: Mapping[str, Page]) -> Iterator[str]:
    """Yield facts that a page states otherwise than the tables, and facts that no page states."""
    by_fact = known(tables)
    missing = set(by_fact[0].values())
    for page in pages.values():
        for fact, value in read_facts(page, by_fact):
            name, number, column = fact
            right = stated(tables, name, tables.rows[name][number - 1], column)
            missing.discard(fact)
            if value != right:
                yield f"{page.title}: states {value!r}, and the table {name} has {right!r}"
    for name, number, column in sorted(missing):
        yield f"no page states {column} of row {number} of {name}"


def unreal(tables: Tables) -> Iterator[str]:
    """Yield values that the specification does not allow."""
    for name, entity in tables.spec.entities.items():
        rows, wrong = tables.rows[name], False
        for column, attribute in entity.attributes.items():
            for row in rows:
                if problem := _value_problem(row[column], attribute) or _order_problem(tables, name, row, column):
                    wrong = True
                    yield f"{name}.{column}: {row[column]!r} {problem}"
        for column, attribute in entity.attributes.items():
            free = attribute.follows is not None and attribute.not_before is None and len(rows) >= _ENOUGH
            if free and not wrong and not _rises(rows, str(attribute.follows), column):
                yield f"{name}.{column}: does not rise with {attribute.follows}"


def known_names(tables: Tables) -> Iterator[str]:
    """Yield names that occur twice, or are words of the specification or of its documents."""
    words, seen = set(tokens(tables.spec.model_dump_json())), set()
    for rows in tables.rows.values():
        for row in rows:
            key = str(row["name"]).casefold()
            if key in seen:
                yield f"{row['name']}: two rows have this name"
            if words.intersection(word for word in tokens(key) if word.isalpha()) - _TRADES:
                yield f"{row['name']}: a word of the specification"
            seen.add(key)


def _value_problem(value: Value, attribute: Attribute) -> str:
    if attribute.type == "category":
        return "" if value in attribute.values else "is none of its values"
    if (type(value) is int) != (attribute.type == "integer"):
        return "is no whole number" if attribute.type == "integer" else "is no day"
    try:
        number = as_number(value)
    except ValueError:
        return "is no day"
    low, high = ordinal(attribute.low), ordinal(attribute.high)
    if not low <= number <= high or (number - low) % attribute.step:
        return f"is not between {attribute.low} and {attribute.high} in steps of {attribute.step}"
    return ""


def _order_problem(tables: Tables, name: str, row: Row, column: str) -> str:
    attribute = tables.spec.entities[name].attributes[column]
    if attribute.not_before is None:
        return ""
    other, _, bound = attribute.not_before.partition(".")
    least, possible = tables.of(name, row, other)[bound], tables.spec.entities[other].attributes[bound].high
    if ordinal(attribute.high) < ordinal(possible) or as_number(row[column]) >= as_number(least):
        return ""  # in the first case the ranges do not allow it
    return f"is less than {least}, its {attribute.not_before}"


def _rises(rows: Sequence[Row], first: str, second: str) -> bool:
    """Return whether the upper half of the rows by the one attribute has more of the other than the lower half."""
    values = [as_number(row[second]) for row in sorted(rows, key=lambda row: as_number(row[first]))]
    half = len(values) // 2
    return sum(values[:half]) < sum(values[-half:])


def leaks(table: Table, surface: str, pages: Mapping[str, str]) -> Iterator[str]:
    """Yield ways to find the right table of a question without opening two pages for each row.

    `surface` is all that searches can show (see `world.surface`), and `pages` the text of each page by id, as `pages.plain`
    writes it.
    """
    for row in table.rows:
        written = [normalised(cell, column) for cell, column in zip(row, table.columns, strict=True)]  # without units
        for cell in written[1:]:
            if holds(surface, cell):
                yield f"a search may show {cell!r}"
        cells = [plain(cell) for cell in written]
        for number, text in pages.items():
            if cells[0] in text and all(cell in text for cell in cells):
                yield f"the page {number} has all of {row[0]}"


def fits_database(tables: Tables, connection: sqlite3.Connection) -> Iterator[str]:
    """Yield tables that a SQLite database has otherwise, and broken keys."""
    for name in tables.spec.entities:
        found = connection.execute(f'SELECT * FROM "{name}" ORDER BY "id"').fetchall()
        if found != [tuple(row.values()) for row in tables.rows[name]]:
            yield f"the table {name} has other rows in SQLite"
    if connection.execute("PRAGMA foreign_key_check").fetchall():
        yield "a relation leads nowhere"
