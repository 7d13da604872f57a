"""A fictional world: its tables, pages, search and questions, made of a specification and a seed, checked when it is made.

Searches are by rule: pages of several grades of relevance in no order, each with a line that teases. This keeps the paper's
instruction to its simulator (Qwen-AgentWorld, section 6.1.2): a result shows a title and a teaser, which names what a page states
and never the value, and highly relevant, moderately relevant and background pages are mixed. The number of pages of each grade is
ours.
"""

import random
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from wm_plugin.errors import UserError
from wm_plugin.worlds.fictional import checks, pages, tables
from wm_plugin.worlds.fictional.pages import Page, plain
from wm_plugin.worlds.fictional.questions import Question, drawn, paths
from wm_plugin.worlds.fictional.score import Table
from wm_plugin.worlds.fictional.spec import Spec, of_column
from wm_plugin.worlds.kit.search import MAX_QUERY, Index, tokens

NOTHING = "Nothing was found."
HIGH, MODERATE, BACKGROUND = 4, 2, 2  # pages of a result
_MODERATE_FROM = 12  # ranks that moderately relevant pages come from, after the first
_KEPT = 8  # worlds; the episodes of a group share one
_TRIES = 2000  # draws of a question


class Search:
    """Finds pages. Equal queries have equal results."""

    def __init__(self, of: Mapping[str, Page], seed: int) -> None:
        self._pages, self._seed = list(of.values()), seed
        self._index = Index([f"{page.title}\n{page.text}" for page in self._pages])  # a title counts twice

    def find(self, query: str) -> list[tuple[str, Page]]:
        """Return (grade, page) for each result, in the order shown; nothing if no page shares a word."""
        ranked = self._index.search(query, HIGH + _MODERATE_FROM)
        if not ranked:
            return []
        rng = random.Random(f"{self._seed}/{' '.join(tokens(query[:MAX_QUERY]))}")
        later = ranked[HIGH:]
        some = rng.sample(later, min(MODERATE, len(later)))
        rest = sorted(set(rng.sample(range(len(self._pages)), min(20, len(self._pages)))) - set(ranked))
        others = rng.sample(rest, min(BACKGROUND, len(rest)))
        graded = {"high": ranked[:HIGH], "moderate": some, "background": others}
        found = [(grade, self._pages[place]) for grade, places in graded.items() for place in places]
        rng.shuffle(found)
        return found

    def text(self, query: str, found: Sequence[tuple[str, Page]]) -> str:
        """Write the results of `find` as the agent sees them. Nothing of the query is repeated."""
        if not found:
            return NOTHING
        words = set(tokens(query[:MAX_QUERY]))
        return "\n".join(f"[{page.id}] {page.title}\n    {teaser(page, words)}" for _, page in found)


def teaser(page: Page, words: set[str]) -> str:
    """Return the first teaser of a page that shares most words with a query."""
    return max(page.teasers, key=lambda line: len(words.intersection(tokens(line))))


def surface(of: Mapping[str, Page]) -> str:
    """Return all that searches can ever show, as `holds` takes it."""
    return plain("\n".join(text for page in of.values() for text in (page.id, page.title, *page.teasers)))


class World:
    """A world and the questions about it; making it raises a UserError if a check fails."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.seed = seed
        self.tables = tables.make(spec, seed)
        self.pages = pages.make(self.tables, seed)
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("PRAGMA foreign_keys = ON")
        tables.fill(self.tables, self._connection)
        found = [*checks.problems(self.tables, self.pages), *checks.fits_database(self.tables, self._connection)]
        if found:
            raise UserError(f"fictional: world {seed} of {spec.setting!r} does not hold together: {found[0]:.200}")
        self._questions: dict[tuple[str, int], tuple[Question, Table]] = {}

    @cached_property
    def search(self) -> Search:
        """The search over its pages."""
        return Search(self.pages, self.seed)

    @cached_property
    def surface(self) -> str:
        """All that searches can show."""
        return surface(self.pages)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The words of each page."""
        return {number: plain(page.text) for number, page in self.pages.items()}

    def question(self, level: str, number: int) -> tuple[Question, Table]:
        """Return a question of a level and its right table, which nothing leaks. Equal arguments give equal questions."""
        if (level, number) not in self._questions:
            self._questions[level, number] = self._drawn(level, number)
        return self._questions[level, number]

    def _drawn(self, level: str, number: int) -> tuple[Question, Table]:
        length = 2 if level == "hard-2" else 1
        if not paths(self.tables, length):
            needs = f"an entity with attributes on both pages and {'two relations' if length == 2 else 'a relation'}"
            raise UserError(f"fictional: no question of level {level}: it needs {needs} from it upwards")
        rng = random.Random(f"fictional question/{self.seed}/{level}/{number}")
        for _ in range(_TRIES):
            question = drawn(self.tables, level, rng)
            if question is None:
                continue
            table = question.answer(self.tables, self._connection)
            if next(checks.leaks(table, self.surface, self.texts), None) is None:
                return question, table
        raise UserError(
            f"fictional: no question of level {level} in {_TRIES} tries: change the counts, so that 2 to 20 rows are related to "
            "one, or give numbers more values"
        )


@lru_cache(_KEPT)
def world_of(spec: str, seed: int) -> World:
    """Return the world of a row's columns."""
    return World(of_column(spec), seed)
