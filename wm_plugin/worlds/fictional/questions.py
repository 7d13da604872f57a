"""Questions about a fictional world. Two queries find the table that answers one, and must agree.

A question asks for all rows of an entity that lead, by one relation or two, to a given row, some of them by a condition on an
attribute. The one query is SQL, which joins upwards; the other goes down from the given row over the tables in Python.
"""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from wm_plugin.errors import UserError
from wm_plugin.worlds.fictional.pages import page_of, stated
from wm_plugin.worlds.fictional.score import Column, Table
from wm_plugin.worlds.fictional.tables import Row, Tables, Value, as_text, quoted

LEVELS = ("standard", "hard-1", "hard-2")
SIZES = {"standard": (2, 6), "hard-1": (2, 8), "hard-2": (3, 12)}  # rows of an answer
_CANDIDATES = 24  # rows before the condition, at most, which an agent may have to look at
_WORDS = {"<=": "at most", ">=": "at least", "=": ""}


@dataclass(frozen=True)
class Condition:
    """An attribute of a row is at most, at least or exactly a value."""

    column: str
    operator: Literal["<=", ">=", "="]
    value: Value

    def holds(self, row: Row) -> bool:
        found = row[self.column]
        if self.operator == "=":
            return found == self.value
        # dates compare as text
        return found <= self.value if self.operator == "<=" else found >= self.value  # type: ignore[operator]


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        path: entities from the one that is asked for to the given row's, each related to the next.
        given: the id of the given row.
        columns: (entity of the path, attribute) of the table, after the name of the first entity.
    """

    path: tuple[str, ...]
    given: int
    columns: tuple[tuple[str, str], ...]
    condition: Condition | None = None

    def text(self, tables: Tables) -> str:
        """Write the question in words."""
        entities = [tables.spec.entities[name] for name in self.path]
        given = tables.rows[self.path[-1]][self.given - 1]["name"]
        first, *later = [one.relations[name] for one, name in zip(entities, self.path[1:], strict=False)]
        related = " of ".join([*(f"the {label}" for label in reversed(later)), f"whose {first}"])
        words = f"all {entities[0].plural} {related} is {given}"
        if (condition := self.condition) is not None:
            attribute = entities[0].attributes[condition.column]
            value = as_text(condition.value, attribute)
            words += f" and whose {attribute.label} is {f'{_WORDS[condition.operator]} {value}'.strip()}"
        titles = "; ".join(column.title for column in self.header(tables))
        owner = f" in the records of {tables.organisation}" if tables.organisation else ""
        return f"List {words}{owner}. The columns: {titles}."

    def header(self, tables: Tables) -> tuple[Column, ...]:
        """Return the columns of the table."""
        first = tables.spec.entities[self.path[0]]
        columns = [Column(first.singular)]
        for name, column in self.columns:
            entity = tables.spec.entities[name]
            attribute = entity.attributes[column]
            title = attribute.label if name == self.path[0] else f"{attribute.label} of the {entity.singular}"
            columns.append(Column(title, attribute.unit or "", attribute.type == "integer"))
        return tuple(columns)

    def sql(self) -> tuple[str, list[Value]]:
        """Return the statement and its parameters."""
        alias = {name: f"t{place}" for place, name in enumerate(self.path)}
        wanted = ['t0."name"', *(f"{alias[name]}.{quoted(column)}" for name, column in self.columns)]
        joins = [
            f'JOIN {quoted(other)} AS {alias[other]} ON {alias[name]}.{quoted(other)} = {alias[other]}."id"'
            for name, other in zip(self.path, self.path[1:], strict=False)
        ]
        where, parameters = [f't{len(self.path) - 1}."id" = ?'], list[Value]([self.given])
        if self.condition is not None:
            where.append(f"t0.{quoted(self.condition.column)} {self.condition.operator} ?")
            parameters.append(self.condition.value)
        statement = f"SELECT {', '.join(wanted)} FROM {quoted(self.path[0])} AS t0 {' '.join(joins)}"
        return f'{statement} WHERE {" AND ".join(where)} ORDER BY t0."name"', parameters

    def chosen(self, tables: Tables) -> list[dict[str, Row]]:
        """Find the rows of all entities of the path, for each row of the answer, from the given row downwards."""
        found = [{self.path[-1]: tables.rows[self.path[-1]][self.given - 1]}]
        for name, above in list(zip(self.path, self.path[1:], strict=False))[::-1]:
            found = [{**one, name: row} for one in found for row in tables.rows[name] if row[above] == one[above]["id"]]
        kept = [one for one in found if self.condition is None or self.condition.holds(one[self.path[0]])]
        return sorted(kept, key=lambda one: str(one[self.path[0]]["name"]))

    def answer(self, tables: Tables, connection: sqlite3.Connection) -> Table:
        """Return the right table, which both queries find."""
        chosen, key = self.chosen(tables), (self.path[0], "name")
        by_hand = [tuple(one[name][column] for name, column in (key, *self.columns)) for one in chosen]
        if sorted(map(repr, connection.execute(*self.sql()))) != sorted(map(repr, by_hand)):
            raise UserError("fictional: two queries find different answers to a question; report it with the row")
        rows = [
            (
                str(one[self.path[0]]["name"]),
                *(stated(tables, name, one[name], column) for name, column in self.columns),
            )
            for one in chosen
        ]
        return Table(self.header(tables), tuple(rows))


def paths(tables: Tables, length: int) -> list[tuple[str, ...]]:
    """Return the paths over `length` relations whose first entity has attributes on both of its pages."""
    entities = tables.spec.entities
    found = [(name,) for name, entity in entities.items() if len({one.page for one in entity.attributes.values()}) == 2]
    return [path for start in found for path in onwards(tables, start, length)]


def onwards(tables: Tables, path: tuple[str, ...], length: int) -> Iterator[tuple[str, ...]]:
    """Yield the paths that go on over `length` relations upwards."""
    if length == 0:
        yield path
        return
    for other in tables.spec.entities[path[-1]].relations:
        yield from onwards(tables, (*path, other), length - 1)


def drawn(tables: Tables, level: str, rng: random.Random) -> Question | None:
    """Draw a question of a level, or None if its answer has not the level's size."""
    ways = paths(tables, 2 if level == "hard-2" else 1)
    if not ways:
        return None
    path = rng.choice(ways)
    entity = tables.spec.entities[path[0]]
    columns = _columns(tables, path, level, rng)
    given = int(rng.choice(tables.rows[path[-1]])["id"])
    question = Question(path, given, columns)
    before = question.chosen(tables)
    least, most = SIZES[level]
    if len(before) > _CANDIDATES:
        return None
    if level != "standard":
        free = [column for column in entity.attributes if (path[0], column) not in columns]
        if not free:
            return None
        condition = _condition(tables, path[0], rng.choice(free), [one[path[0]] for one in before], rng)
        if condition is None:
            return None
        question = Question(path, given, columns, condition)
        if len(question.chosen(tables)) == len(before):
            return None
    return question if least <= len(question.chosen(tables)) <= most else None


def _columns(tables: Tables, path: Sequence[str], level: str, rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Draw attributes of both pages of the first entity, and on hard-2 one of the second."""
    entity = tables.spec.entities[path[0]]
    picked = [
        rng.choice([column for column in entity.attributes if page_of(entity, column) == page])
        for page in ("profile", "record")
    ]
    rest = [column for column in entity.attributes if column not in picked]
    if level != "standard" and len(rest) > 1:
        picked.append(rng.choice(rest))
    second = tables.spec.entities[path[1]].attributes
    more = [(path[1], rng.choice(sorted(second)))] if level == "hard-2" and second else []
    return (*((path[0], column) for column in entity.attributes if column in picked), *more)


def _condition(tables: Tables, name: str, column: str, rows: Sequence[Row], rng: random.Random) -> Condition | None:
    if not rows:
        return None
    value = rng.choice(rows)[column]
    if tables.spec.entities[name].attributes[column].type == "category":
        return Condition(column, "=", value)
    return Condition(column, rng.choice(("<=", ">=")), value)
