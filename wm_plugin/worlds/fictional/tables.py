"""The facts of a fictional world: names and tables made of a specification by a seed, and the same in a real SQLite."""

import datetime
import math
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wm_plugin.worlds.fictional.spec import Attribute, Entity, Spec
from wm_plugin.worlds.kit.search import tokens

_ONSETS = (
    *("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pl", "qu"),
    *("r", "s", "sk", "st", "t", "th", "tr", "v", "vr", "w", "y", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ae", "ea", "io", "ou")
_CODAS = ("", "", "", "l", "m", "n", "r", "v", "nd", "rk", "lm", "rn")
TRADES = ("Works", "Group", "Brothers", "Union", "Makers", "Partners", "House", "and Sons")
_ENDINGS = ("mouth", "holt", "wick", "stead", "fell", "haven", "ford", "mere")
_LEAST, _MOST_TRIES = 6, 1000  # letters of a root, and draws of one


class Names:
    """Draws names for one world, which no model has read of. No two have the same root, so none is a part of another.

    Args:
        taken: words in lower case that must not be names, such as those of the documents.
    """

    def __init__(self, rng: random.Random, taken: set[str]) -> None:
        self._rng, self._taken = rng, set(taken)
        self._styles: dict[str, Callable[[], str]] = {
            "place": lambda: self.root(2) + rng.choice(_ENDINGS) if rng.random() < 0.5 else self.root(),
            "company": lambda: f"{self.root()} {rng.choice(TRADES)}",
            "person": lambda: f"{self.root()} {self.root()}",
            "model": lambda: f"{self.root()} {rng.randint(11, 98)}",
            "code": lambda: f"{self.root()[:5].upper()}-{rng.randint(1000, 9999)}",
        }

    def draw(self, style: str) -> str:
        """Draw a name in one of `spec.NAMES`, unlike those before."""
        while True:
            name = self._styles[style]()
            if name.casefold() not in self._taken:
                self._taken.add(name.casefold())
                return name

    def root(self, syllables: int = 0) -> str:
        """Draw a word of syllables, with a capital letter."""
        for _ in range(_MOST_TRIES):
            count = syllables or self._rng.choice((2, 2, 3))
            text = "".join(
                self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + self._rng.choice(_CODAS) for _ in range(count)
            )
            if (len(text) >= _LEAST or syllables) and len(text) <= 12 and text not in self._taken:
                self._taken.add(text)
                return text.capitalize()
        return self.root(4)  # pragma: no cover  # a world has far fewer names than there are roots


Value = int | str  # dates as 2031-05-04
Row = Mapping[str, Value]  # by column: `id`, `name`, relations (the other's id) and attributes
_FOLLOWS = 0.8  # how much of a value its `follows` decides; the rest is chance
_PAPER = (300, 500)  # rows of a world


@dataclass(frozen=True)
class Tables:
    """The rows of each entity, in the order of their ids, which begin at 1.

    Attributes:
        spec: of this very world, which may lack attributes of the one that it was made of.
        organisation: whose records they are, if the strategy is private; else "".
    """

    spec: Spec
    organisation: str
    rows: Mapping[str, Sequence[Row]]

    def of(self, entity: str, row: Row, other: str) -> Row:
        """Return the row of the entity `other` that a row of `entity` has a relation to."""
        assert other in self.spec.entities[entity].relations
        return self.rows[other][int(row[other]) - 1]


def make(spec: Spec, seed: int) -> Tables:
    """Make the tables of a world. Equal arguments give equal tables in every process."""
    rng = random.Random(f"fictional/{seed}")
    if spec.vary:
        spec = varied(spec, rng)
    names = Names(rng, _words(spec))
    organisation = names.draw("company") if spec.strategy == "private" else ""
    rows: dict[str, list[Row]] = {}
    for name, entity in spec.entities.items():
        rows[name] = _rows(entity, rows, names, rng)
    return Tables(spec, organisation, rows)


def varied(spec: Spec, rng: random.Random) -> Spec:
    """Drop a few attributes and change the counts of a specification.

    An attribute that another one needs stays, and so do two on each page of an entity that has as many.
    """
    entities = {}
    for name, entity in spec.entities.items():
        attributes = dict(entity.attributes)
        for column in rng.sample(sorted(attributes), len(attributes)):
            same = [one for one in attributes.values() if one.page == attributes[column].page]
            free = len(same) > 2 and len(attributes) > 5 and not _is_needed(column, name, attributes, spec)
            if free and rng.random() < 0.5:
                del attributes[column]
        count = max(1, round(entity.count * rng.uniform(0.9, 1.1)))
        entities[name] = entity.model_copy(update={"attributes": attributes, "count": count})
    made = spec.model_copy(update={"entities": entities})
    within = _PAPER[0] <= made.rows <= _PAPER[1] or not _PAPER[0] <= spec.rows <= _PAPER[1]
    return made if within else spec


def _is_needed(column: str, entity: str, attributes: Mapping[str, Attribute], spec: Spec) -> bool:
    followed = any(one.follows == column for one in attributes.values())
    bounds = {one.not_before for other in spec.entities.values() for one in other.attributes.values()}
    return followed or f"{entity}.{column}" in bounds


def _words(spec: Spec) -> set[str]:
    """Return every word of a specification, which no name of a world may be."""
    return set(tokens(spec.model_dump_json()))


def _rows(entity: Entity, above: Mapping[str, Sequence[Row]], names: Names, rng: random.Random) -> list[Row]:
    others = {other: _shares(len(above[other]), entity.count, rng) for other in entity.relations}
    rows: list[Row] = []
    for number in range(entity.count):
        row: dict[str, Value] = {"id": number + 1, "name": names.draw(entity.names)}
        row |= {other: ids[number] for other, ids in others.items()}
        places: dict[str, float] = {}  # in their ranges, from 0 to 1
        for column, attribute in entity.attributes.items():
            if attribute.type == "category":
                row[column] = rng.choice(attribute.values)
                continue
            chance = rng.random()
            place = chance if attribute.follows is None else _mixed(places[attribute.follows], chance)
            places[column] = place
            row[column] = _value(attribute, place, _least(attribute, row, above))
        rows.append(row)
    return rows


def _shares(parents: int, children: int, rng: random.Random) -> list[int]:
    """Draw the id of a parent for each child: each has about as many, and one if there are enough."""
    ids = [number % parents + 1 for number in range(children)]
    for place in rng.sample(range(children), children // 4):
        if place >= parents:  # the first ones keep a child for each parent
            ids[place] = rng.randint(1, parents)
    return rng.sample(ids, len(ids))


def _mixed(followed: float, chance: float) -> float:
    return _FOLLOWS * followed + (1 - _FOLLOWS) * chance


def _least(attribute: Attribute, row: Row, above: Mapping[str, Sequence[Row]]) -> Value | None:
    if attribute.not_before is None:
        return None
    other, _, column = attribute.not_before.partition(".")
    return above[other][int(row[other]) - 1][column]


def _value(attribute: Attribute, place: float, least: Value | None) -> Value:
    """Return the value at a place of the range, which begins at `least` if that is larger."""
    low, high = ordinal(attribute.low), ordinal(attribute.high)
    steps = (high - low) // attribute.step
    first = 0 if least is None else min(steps, max(0, math.ceil((as_number(least) - low) / attribute.step)))
    number = low + attribute.step * (first + min(int(place * (steps - first + 1)), steps - first))
    return number if attribute.type == "integer" else datetime.date.fromordinal(number).isoformat()


def ordinal(bound: int | datetime.date | None) -> int:
    """Return a bound of a range as a whole number."""
    assert bound is not None
    return bound if isinstance(bound, int) else bound.toordinal()


def as_number(value: Value) -> int:
    """Return a number, or a day as one."""
    return value if isinstance(value, int) else datetime.date.fromisoformat(value).toordinal()


def quoted(name: str) -> str:
    """Quote the name of a table or column for SQL; `spec` has checked that it is a plain word."""
    return f'"{name}"'


def fill(tables: Tables, connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, with keys, and put the rows into them."""
    for name, entity in tables.spec.entities.items():
        columns = ['"id" INTEGER PRIMARY KEY', '"name" TEXT NOT NULL UNIQUE']
        columns += [f'{quoted(other)} INTEGER NOT NULL REFERENCES {quoted(other)} ("id")' for other in entity.relations]
        columns += [
            f"{quoted(column)} {'INTEGER' if attribute.type == 'integer' else 'TEXT'} NOT NULL"
            for column, attribute in entity.attributes.items()
        ]
        connection.execute(f"CREATE TABLE {quoted(name)} ({', '.join(columns)})")
        rows = [tuple(row.values()) for row in tables.rows[name]]
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", rows)
    connection.commit()


def as_text(value: Value, attribute: Attribute) -> str:
    """Write a value as the pages do: a number with its unit."""
    return f"{value} {attribute.unit}" if attribute.unit else str(value)
