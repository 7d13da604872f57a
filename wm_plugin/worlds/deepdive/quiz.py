"""Questions whose answers take several pages, and whether an answer is right. The paper has a data set and a judge of its own.

A question begins at a row of a made web's tables and follows its relations upwards, a page each, to a number or a day, which
nobody guesses: standard over one relation, hard-1 over two, and hard-2 over two from a row that is not named but described by a
value of its own.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wm_plugin.errors import UserError
from wm_plugin.worlds.deepdive.web import records, text_of, web_of
from wm_plugin.worlds.fictional.pages import page_of, stated, title_of
from wm_plugin.worlds.fictional.questions import onwards
from wm_plugin.worlds.fictional.tables import Row, Tables

LEVELS = ("standard", "hard-1", "hard-2")
_LONGEST = {"question": 4000, "answer": 200}  # characters
_ENDS = " .\"'`"


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
