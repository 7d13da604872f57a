"""The documents of a fictional world, made of its facts, and the facts that can be read from them again.

Each row has a profile, and a record with its other attributes; each relation a list of names; and a few notes repeat a fact. No
page has everything about a row, so a question about attributes of both takes both. A page is a title and lines; a line that
states a fact has a *teaser*, the same line without its value, which is all that a search shows of it.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wm_plugin.worlds.fictional.spec import Entity
from wm_plugin.worlds.fictional.tables import Row, Tables, Value, as_text
from wm_plugin.worlds.kit.search import tokens

_NOTES = 0.15  # share of rows with a note
HIDDEN = "..."  # in a teaser, instead of a value
_TEASER = 120  # characters of a line without a fact
Fact = tuple[str, int, str]  # the entity, the row's id, the column


@dataclass(frozen=True)
class Line:
    """A line of a page. `fact` is what it states, and `teaser` what a search may show of it."""

    text: str
    teaser: str = ""
    fact: Fact | None = None


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        id: what `open_page` takes. It follows from nothing that an agent knows.
        kind: profile, record, list, note or document.
    """

    id: str
    title: str
    kind: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return "\n".join([self.title, "", *(line.text for line in self.lines)])

    @property
    def teasers(self) -> list[str]:
        """The lines of which a search shows one, beside the title."""
        return [line.teaser for line in self.lines if line.teaser] or [self.lines[0].text[:_TEASER]]


def make(tables: Tables, seed: int) -> dict[str, Page]:
    """Make all pages of a world, by id."""
    rng, pages = random.Random(f"fictional pages/{seed}"), {}
    footer = (Line(f"Internal record of {tables.organisation}."),) if tables.organisation else ()
    for title, kind, lines in _all(tables, rng):
        number = hashlib.sha256(f"{seed}/{kind}/{title}".encode()).hexdigest()[:8]
        pages[number] = Page(number, title, kind, (*lines, *footer))
    return pages


def page_of(entity: Entity, column: str) -> str:
    """Return the kind of page that states a column: profile, which has relations too, or record."""
    return entity.attributes[column].page if column in entity.attributes else "profile"


def title_of(entity: Entity, row: Row, kind: str) -> str:
    """Return the title of a row's profile or record."""
    return str(row["name"]) if kind == "profile" else f"{row['name']}: {entity.record}"


def _all(tables: Tables, rng: random.Random) -> Iterator[tuple[str, str, tuple[Line, ...]]]:
    spec = tables.spec
    for name, entity in spec.entities.items():
        columns = [*entity.relations, *entity.attributes]
        for row in tables.rows[name]:
            facts: dict[str, list[Line]] = {"profile": [], "record": []}
            for column in columns:
                page = page_of(entity, column)
                facts[page].append(_line(tables, name, row, column, page))
            first = Line(f"A page about {row['name']}, one of the {entity.plural}.")
            more = [Line(f"See also the {entity.record}.")] if facts["record"] else []
            yield title_of(entity, row, "profile"), "profile", (first, *facts["profile"], *more)
            if facts["record"]:
                yield title_of(entity, row, "record"), "record", tuple(facts["record"])
            if columns and rng.random() < _NOTES:
                asked = Line(f"Somebody asked about {row['name']}.")
                yield f"A note on {row['name']}", "note", (asked, _line(tables, name, row, rng.choice(columns)))
        if not entity.relations:
            lines = tuple(Line(f"- {row['name']}") for row in tables.rows[name])
            yield f"All {entity.plural}", "list", (Line(f"The {entity.plural} by name:"), *lines)
        for other in entity.relations:
            yield from _lists(tables, name, other)
    for document in spec.documents:
        written = document.text.strip().splitlines()
        yield document.title, "document", tuple(Line(line) for line in written if line.strip())


def _lists(tables: Tables, name: str, other: str) -> Iterator[tuple[str, str, tuple[Line, ...]]]:
    """Yield a page for each row of `other`, with the names of those that have a relation to it."""
    entity, above = tables.spec.entities[name], tables.spec.entities[other]
    members: dict[Value, list[str]] = {}
    for row in tables.rows[name]:
        members.setdefault(row[other], []).append(str(row["name"]))
    for row in tables.rows[other]:
        inside = tuple(Line(f"- {one}") for one in sorted(members.get(row["id"], [])))
        first = Line(f"The {entity.plural} whose {entity.relations[other]} is the {above.singular} {row['name']}:")
        yield f"{entity.plural} of {row['name']}", "list", (first, *(inside or (Line("- none"),)))


def stated(tables: Tables, name: str, row: Row, column: str) -> str:
    """Return the value of a fact as pages state it."""
    entity = tables.spec.entities[name]
    if column in entity.relations:
        return str(tables.of(name, row, column)["name"])
    return as_text(row[column], entity.attributes[column])


def label_of(entity: Entity, column: str) -> str:
    """Return the label of a column on pages."""
    return entity.relations[column] if column in entity.relations else entity.attributes[column].label


def _line(tables: Tables, name: str, row: Row, column: str, page: str = "profile") -> Line:
    """State a fact as a sentence of a profile, or as an entry of a record."""
    label, dot = label_of(tables.spec.entities[name], column), "." if page == "profile" else ""
    beginning = f"The {label} of {row['name']} is" if page == "profile" else f"{label}:"
    value = stated(tables, name, row, column)
    return Line(f"{beginning} {value}{dot}", f"{beginning} {HIDDEN}", (name, int(row["id"]), column))


Known = tuple[Mapping[str, Fact], Mapping[tuple[str, str], Fact]]


def known(tables: Tables) -> Known:
    """Return each fact by the beginning of its sentence, and by its entry of a record (the title's name, the label)."""
    subjects: dict[str, Fact] = {}
    entries: dict[tuple[str, str], Fact] = {}
    for name, entity in tables.spec.entities.items():
        for row in tables.rows[name]:
            for column in (*entity.relations, *entity.attributes):
                fact, label = (name, int(row["id"]), column), label_of(entity, column)
                subjects[f"The {label} of {row['name']}"] = entries[str(row["name"]), label] = fact
    return subjects, entries


def read_facts(page: Page, known: Known) -> Iterator[tuple[Fact, str]]:
    """Yield the facts that a page states with their values, read from its words alone."""
    subjects, entries = known
    head, _, _ = page.title.partition(": ")
    for line in page.text.split("\n")[1:]:
        subject, verb, value = line.partition(" is ")
        if verb and subject in subjects:
            yield subjects[subject], value.removesuffix(".")
        label, colon, value = line.partition(": ")
        if colon and (head, label) in entries:
            yield entries[head, label], value


def plain(text: str) -> str:
    """Write a text as its words in lower case, with a space around each."""
    return f" {' '.join(tokens(text))} "


def holds(words: str, text: str) -> bool:
    """Return whether a text is in another, which is `plain`, as whole words."""
    return plain(text) in words
