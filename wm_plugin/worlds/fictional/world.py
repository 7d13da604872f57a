"""A fictional world: its tables, pages, search and questions, made of a specification and a seed, checked when it is made."""

import random
import sqlite3
from functools import cached_property, lru_cache

from wm_plugin.errors import UserError
from wm_plugin.worlds.fictional import checks, pages, results, tables
from wm_plugin.worlds.fictional.questions import Question, drawn, paths
from wm_plugin.worlds.fictional.results import Search
from wm_plugin.worlds.fictional.score import Table
from wm_plugin.worlds.fictional.spec import Spec, of_column

_KEPT = 8  # worlds; the episodes of a group share one
_TRIES = 2000  # draws of a question


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
        return results.surface(self.pages)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The words of each page."""
        return {number: results.plain(page.text) for number, page in self.pages.items()}

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
