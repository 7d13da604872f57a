"""A local web: pages with addresses, a search over them, and questions whose answers take several pages.

A web is made of a number, or read from a file of the user's own.
The pages of a made web are those of the world `fictional`: one invented world of each of its specifications, so that no model
knows what they state. A number makes the same web in every process.

A question begins at a row of a made web's tables and follows its relations upwards, a page each, to a number or a day, which
nobody guesses: standard over one relation, hard-1 over two, and hard-2 over two from a row that is not named but described by a
value of its own. The paper has a data set and a judge of its own.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wm_plugin.data.files import BROKEN, Record, open_file, parse
from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.fictional.pages import page_of, stated, title_of
from wm_plugin.worlds.fictional.questions import onwards
from wm_plugin.worlds.fictional.spec import SHIPPED
from wm_plugin.worlds.fictional.tables import Row, Tables
from wm_plugin.worlds.fictional.world import World, world_of
from wm_plugin.worlds.kit.reading import MAX_LINE
from wm_plugin.worlds.kit.search import Index, tokens

ADDRESS = "https://web.test/"  # of the pages that have none; RFC 2606 keeps the domain for tests
_SLUG, _LONGEST_URL, _LONGEST_TITLE = 60, 120, 80  # characters
_LARGEST = 1 << 20  # characters of a page in a file
_DIGITS = 9  # of a web's number
_KEPT = 4  # webs; a run has few
LEVELS = ("standard", "hard-1", "hard-2")
_LONGEST = {"question": 4000, "answer": 200}  # characters
_ENDS = " .\"'`"


class Page(NamedTuple):
    """A page, in lines that are not too long to be shown."""

    url: str
    title: str
    lines: list[str]


class Web:
    """Pages by their addresses.

    Args:
        pages: (title, text, address or "") of each.
        worlds: that the pages are of, for questions about them.
    """

    def __init__(self, pages: Iterable[tuple[str, str, str]], worlds: tuple[World, ...] = ()) -> None:
        self.worlds = worlds
        self.pages: dict[str, Page] = {}
        self.by_title: dict[str, Page] = {}
        self._slugs: Counter[str] = Counter()
        for title, text, url in pages:
            url = url or self._address(title)
            if url in self.pages:
                raise UserError(f"deepdive: two pages have the address {url}")
            lines = [part for line in text.splitlines() for part in _wrapped(line)]
            self.pages[url] = Page(url, title, lines)
            self.by_title.setdefault(title, self.pages[url])
        if not self.pages:
            raise UserError("deepdive: a web needs a page")

    def _address(self, title: str) -> str:
        slug = "-".join(re.findall(r"\w+", title.casefold()))[:_SLUG] or "page"
        while True:
            self._slugs[slug] += 1
            number = self._slugs[slug]
            url = f"{ADDRESS}{slug}-{number}" if number > 1 else f"{ADDRESS}{slug}"
            if url not in self.pages:
                return url

    @cached_property
    def index(self) -> Index:
        """The search over its pages; a title counts twice, as the pages of `fictional` begin with theirs."""
        return Index([f"{page.title}\n{chr(10).join(page.lines)}" for page in self.pages.values()])

    @cached_property
    def _in_order(self) -> list[Page]:
        return list(self.pages.values())

    def find(self, query: str, most: int) -> list[tuple[Page, str]]:
        """Return the pages that fit a query best, each with its line that has most of the query's words."""
        words = set(tokens(query))
        found = [self._in_order[place] for place in self.index.search(query, most)]

        def shared(line: str) -> int:
            return len(words.intersection(tokens(line)))

        return [(page, max(page.lines, key=shared, default="")) for page in found]


def _wrapped(line: str) -> list[str]:
    """Return a line's parts. White space of a long one is collapsed first, as `textwrap` takes quadratic time for tabs."""
    return textwrap.wrap(" ".join(line.split()) if len(line) > MAX_LINE else line, MAX_LINE) or [""]


@lru_cache(_KEPT)
def web_of(corpus: str) -> Web:
    """Return the web of a number, or of a file by its path."""
    if corpus.isascii() and corpus.isdigit() and len(corpus) <= _DIGITS:
        worlds = tuple(world_of(spec, int(corpus)) for spec in SHIPPED)
        pages = [page for world in worlds for page in world.pages.values()]
        # the first line of a text is the title
        return Web(((page.title, page.text.partition("\n")[2].strip(), "") for page in pages), worlds)
    if not corpus.endswith((".jsonl", ".jsonl.gz")):  # rows come from datasets: they name no other file
        number = f"a number of at most {_DIGITS} digits"
        raise UserError(f"deepdive: the corpus {shown(corpus)} is neither {number} nor a file *.jsonl")
    return Web(_read(corpus))


def records(path: str) -> Iterator[Record]:
    """Yield the records of a file with one JSON object a line."""
    try:
        with open_file(Path(path)) as file:
            for row, line in enumerate(file):
                if line.strip():
                    yield parse(row, line)
    except BROKEN as error:
        raise UserError(f"deepdive: {shown(path)} cannot be read: {error}") from None


def text_of(record: Record, column: str, path: str, most: int, *, needed: bool = True) -> str:
    """Return the text in a column of a line, which may be missing unless it is `needed`."""
    value = record.value.get(column) if isinstance(record.value, dict) else None
    if value is None and not needed and isinstance(record.value, dict):
        return ""
    if not isinstance(value, str) or not (value.strip() or not needed) or len(value) > most:
        where = f"deepdive: {shown(path)}: line {record.row + 1}"
        raise UserError(f"{where}: `{column}` needs a text of at most {most:,} characters")
    return value


def _read(path: str) -> Iterator[tuple[str, str, str]]:
    for record in records(path):
        title = " ".join(text_of(record, "title", path, 10 * _LONGEST_TITLE).split())
        yield title, text_of(record, "text", path, _LARGEST), text_of(record, "url", path, _LONGEST_URL, needed=False)


class Question(NamedTuple):
    """A question, its answer, the unit that an answer may leave out, and the titles of the pages that lead to it."""

    text: str
    answer: str
    unit: str = ""
    trail: tuple[str, ...] = ()


def is_right(submission: str, answer: str, unit: str = "") -> bool:
    """Compare two answers, ignoring case, quotes, a full stop, commas in a number, and its unit."""
    return _plain(submission, unit) == _plain(answer, unit)


def _plain(text: str, unit: str) -> str:
    plain = " ".join(text.split()).strip(_ENDS).casefold()
    number = plain.removesuffix(unit.casefold()).strip().replace(",", "")
    return number if number.isascii() and number.removeprefix("-").isdigit() else plain


@lru_cache(16)
def questions(corpus: str, level: str) -> list[Question]:
    """Return all questions of a level about a made web."""
    web = web_of(corpus)
    found = [question for world in web.worlds for question in _asked(world.tables, level)]
    # names of different worlds may be the same, and then a title leads to another page
    titles = Counter(page.title for page in web.pages.values())
    return [question for question in found if all(titles[title] == 1 for title in question.trail)]


def _asked(tables: Tables, level: str) -> Iterator[Question]:
    for name, entity in tables.spec.entities.items():
        for path in onwards(tables, (name,), 1 if level == "standard" else 2):
            for row in tables.rows[name]:
                if level != "hard-2":
                    yield from _about(tables, path, row, f"the {entity.singular} {row['name']}", "", ())
                    continue
                for described, column in _descriptions(tables, name, row):
                    page = title_of(entity, row, page_of(entity, column))
                    yield from _about(tables, path, row, f"this {entity.singular}", described, (page,))


def _about(
    tables: Tables, path: tuple[str, ...], row: Row, subject: str, before: str, trail: tuple[str, ...]
) -> Iterator[Question]:
    """Yield the questions about a number or a day at the end of a path that begins at a row."""
    for name, other in pairwise(path):
        entity = tables.spec.entities[name]
        page = title_of(entity, row, "profile")  # which states the relation
        trail = trail if page in trail else (*trail, page)
        subject = f"the {entity.relations[other]} of {subject}"
        row = tables.of(name, row, other)
    entity = tables.spec.entities[path[-1]]
    for column, attribute in entity.attributes.items():
        if attribute.type != "category":
            text = f"{before}What is the {attribute.label} of {subject}?"
            answer = stated(tables, path[-1], row, column)
            yield Question(text, answer, attribute.unit or "", (*trail, title_of(entity, row, page_of(entity, column))))


def _descriptions(tables: Tables, name: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield sentences that describe a row by a value that no other row of its table has, each with its column."""
    entity = tables.spec.entities[name]
    for column, attribute in entity.attributes.items():
        if attribute.type != "category" and sum(other[column] == row[column] for other in tables.rows[name]) == 1:
            yield f"Of all {entity.plural}, one has the {attribute.label} {stated(tables, name, row, column)}. ", column


@lru_cache(4)
def own_questions(path: str) -> list[Question]:
    """Read the questions of the user's own file, one JSON object a line with `question` and `answer`."""
    found = []
    for record in records(path):
        text, answer = (text_of(record, column, path, most) for column, most in _LONGEST.items())
        if is_right("", answer):
            raise UserError(f"deepdive: {path}: line {record.row + 1}: `answer` needs more than quotes or dots")
        found.append(Question(" ".join(text.split()), answer))
    if not found:
        raise UserError(f"deepdive: {path}: there is no question")
    return found


def about(question: Question) -> str:
    """Return what a question begins at, the same on every level."""
    return question.trail[0].partition(": ")[0] if question.trail else question.text


def drawn_from(corpus: str, questions_path: str | None, level: str) -> list[Question]:
    """Return all questions about a web: those of a file for a web from a file, or made ones."""
    if bool(web_of(corpus).worlds) == (questions_path is not None):
        raise UserError("deepdive: corpus and questions go together: write the paths of both, or neither")
    return questions(corpus, level) if questions_path is None else own_questions(questions_path)
