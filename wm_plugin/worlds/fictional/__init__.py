"""Questions about worlds that exist nowhere else: search, open pages, and answer with a table (Qwen-AgentWorld, section 6.1.2).

A world is a relational database of 300 to 500 invented rows in a real SQLite, made of a specification and a seed, with pages that
state its facts. Searches are answered by rule: they mix relevant pages with others and tease without answering. Nobody can know
the answer but who searches and reads, since all names are invented. Docs: docs/agentworld.md.
"""

import random
from typing import Any

from wm_plugin.hosting.world import not_a_tool
from wm_plugin.worlds.fictional.pages import page_of, title_of
from wm_plugin.worlds.fictional.questions import LEVELS
from wm_plugin.worlds.fictional.score import MAX_TABLE, NoTableError, Score, read, score, written
from wm_plugin.worlds.fictional.spec import SHIPPED, column_of, load
from wm_plugin.worlds.fictional.world import World, world_of
from wm_plugin.worlds.kit.counted import CountedEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import (
    Rows,
    check_level,
    draws,
    row_number,
    row_texts,
    rows_of,
    turn_limit,
    world_seed,
)
from wm_plugin.worlds.specs import SPECS as WORLDS
from wm_plugin.worlds.specs import described_as

__all__ = ["INSTRUCTION", "LEVELS", "FictionalEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = {"standard": 30, "hard-1": 40, "hard-2": 60}  # by level
MAX_ARGUMENT = 1000  # characters of a query or a page's number
QUESTIONS = 8  # of a world, in rows: worlds take longer to make than questions
_MOST_QUESTIONS = 10_000  # of a world
INSTRUCTION = WORLDS["fictional"].instruction


@described_as("fictional")
class FictionalEnvironment(CountedEnvironment):
    """One episode: at most `max_turns` tool calls; the reward is the mean of item F1 and row F1 (see `score`).

    A search or an opening is effective when it shows something for the first time; an answer that is a table always is.
    """

    observer = "tool"
    answer_tool = "answer"

    def _begin(self) -> None:
        super()._begin()
        self._score = Score(0.0, 0.0)
        self._found: set[str] = set()  # pages by number that a search has shown
        self._opened: set[str] = set()
        self._asked: set[str] = set()  # what was searched for

    def reset(
        self, spec: str, world_seed: int, question: int, level: str = "standard", max_turns: int | None = None, **_: Any
    ) -> str:
        """Begin a question.

        Args:
            spec: a specification's name, or all of it as JSON.
            world_seed: the world follows from it and `spec`.
            question: its number; the question follows from it, `level` and the world.
        """
        spec, level = row_texts("fictional", spec=spec, level=level)
        level = level or "standard"
        check_level(level, LEVELS, "fictional world")
        seed = row_number(world_seed, "world_seed", "fictional")
        number = row_number(question, "question", "fictional", _MOST_QUESTIONS)
        limit = turn_limit(max_turns, MAX_TURNS[level])
        self._world = world_of(spec, seed)
        self._question, self._table = self._world.question(level, number)
        self._results = self._world.search
        self._begin()
        self.max_turns = limit
        return f"The search covers {len(self._world.pages)} pages."

    def search(self, query: str) -> str:
        if refusal := self._take_turn(MAX_ARGUMENT, query=query):
            return refusal
        if not query.strip():
            return self._refuse("query is empty")
        self._asked.add(query)
        found = self._results.find(query)
        self._found |= {page.id for _, page in found}
        return self._show(self._results.text(query, found), new=bool(found))

    def open_page(self, page: str) -> str:
        if refusal := self._take_turn(MAX_ARGUMENT, page=page):
            return refusal
        number = page.strip().strip("[]").lower()
        if number not in self._world.pages:
            return self._refuse("there is no page of this number; take one that a search has shown")
        self._opened.add(number)
        return self._show(self._world.pages[number].text)

    def answer(self, table: str) -> str:
        if refusal := self._take_turn(MAX_TABLE, table=table):
            return refusal
        try:
            rows = read(table, self._table.columns)
        except NoTableError as error:
            return self._refuse(str(error))
        self._score = score(rows, self._table)
        self._ended, self._reward = True, self._score.reward
        self._effective += 1
        figures = f"item F1 {self._score.item_f1:.2f}, row F1 {self._score.row_f1:.2f}"
        return f"The answer is {'right' if self.success else 'not right'}: {figures}. The episode is over."

    @property
    def metrics(self) -> dict[str, Any]:
        """The counts, and `item_f1` and `row_f1` of the answer, 0 without one."""
        return {**super().metrics, "item_f1": self._score.item_f1, "row_f1": self._score.row_f1}

    @not_a_tool
    def world_context(self) -> str:
        """The hidden state, for a world model: the tables, the rules of results and pages, and what success needs."""
        return context(self._world, written(self._table)) if self.max_turns else ""

    def _show(self, text: str, *, new: bool = True) -> str:
        self._note(new, text)
        return self._observe(text)


def context(world: World, answer: str) -> str:
    """Describe what a world model must know to answer searches and openings as the rules do."""
    parts = []
    for name, rows in world.tables.rows.items():
        entity = world.tables.spec.entities[name]
        lines = ["|".join(["id", "name", *entity.relations, *entity.attributes])]
        lines += ["|".join(str(value) for value in row.values()) for row in rows]
        parts.append("\n".join([f"Table {name}: {entity.plural}", *lines]))
    kinds = ", ".join(sorted({page.kind for page in world.pages.values()}))
    rules = (
        f"The world has {len(world.pages)} pages ({kinds}); their numbers have eight characters. A search shows some pages "
        "that fit well, some that fit a little and some that do not, in no order, each with a line whose value is left out. "
        "No search shows a cell of the table below beside its first column; pages show what they state."
    )
    return "\n\n".join([*parts, rules, f"The episode succeeds if this table is the answer:\n{answer}"])


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    spec: str | None = None,
    max_turns: int | None = None,
) -> Rows:
    """Make rows with the columns `prompt`, `spec`, `world_seed`, `question` and `level`.

    standard asks for the rows that are related to one, with attributes of both pages; hard-1 with a condition and a column more;
    hard-2 over two relations, with an attribute of the row between. Each world has `QUESTIONS` questions. Held-out worlds have
    other seeds: no name and no fact of them is in a training world.

    Args:
        spec: one of `SHIPPED`, or the path of your own specification; None draws one of `SHIPPED` for each world.
        max_turns: tool calls of an episode, at most, and no more than the level has.
    """
    check_level(level, LEVELS, "fictional world")
    rng = draws(seed, held_out)
    own = None if spec is None else column_of(load(spec), spec)
    rows: Rows = []
    while len(rows) < count:
        number = world_seed(rng, held_out)
        chosen = rng.choice(SHIPPED) if own is None else own
        world = world_of(chosen, number)
        rows += [row_of(world, chosen, level, number, max_turns) for number in range(min(QUESTIONS, count - len(rows)))]
    return rows


def row_of(world: World, spec: str, level: str, number: int, max_turns: int | None = None) -> dict[str, Any]:
    """Make the row of a question."""
    question, _ = world.question(level, number)
    usual = MAX_TURNS[level]
    turns = usual if max_turns is None else min(max_turns, usual)
    words = {"setting": world.tables.spec.setting, "task": question.text(world.tables)}
    task = {"words": words, "spec": spec, "world_seed": world.seed, "question": number, "level": level}
    return rows_of(INSTRUCTION, [task], turns, usual, "tool call")[0]


def pages_of(environment: FictionalEnvironment) -> list[tuple[str, str]]:
    """Return (title, number) of the pages that state the cells of the answer, each once."""
    tables, question = environment._world.tables, environment._question
    numbers = {(page.kind, page.title): page.id for page in environment._world.pages.values()}
    needed: dict[tuple[str, str], None] = {}
    for chosen in question.chosen(tables):
        for name, column in question.columns:
            entity = tables.spec.entities[name]
            kind = page_of(entity, column)
            needed[kind, title_of(entity, chosen[name], kind)] = None
    return [(title, numbers[kind, title]) for kind, title in needed]


def expert() -> Chooser:
    """Return a policy that searches for the pages that state the answer by their titles, opens each, and answers."""

    def choose(environment: FictionalEnvironment) -> ToolCall | None:
        for title, number in pages_of(environment):
            if number in environment._opened:
                continue
            if number in environment._found:
                return "open_page", {"page": number}
            if title in environment._asked:
                return None  # the search does not show it
            return "search", {"query": title}
        return "answer", {"table": written(environment._table)}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that searches for words of titles, opens pages that it was shown or any, and now and then answers."""

    def choose(environment: FictionalEnvironment) -> ToolCall:
        page = rng.choice(list(environment._world.pages.values()))
        tool = rng.choices(["search", "open_page", "answer"], [6, 8, 1])[0]
        if tool == "search":
            words = [*page.title.split(), *rng.choice(page.teasers).split()]
            return tool, {"query": " ".join(rng.sample(words, min(len(words), 3)))}
        if tool == "open_page":
            known = sorted(environment._found)
            return tool, {"page": rng.choice(known) if known and rng.random() < 0.8 else page.id}
        header = " | ".join(column.title for column in environment._table.columns)
        return tool, {"table": f"| {header} |\n| {page.title} |"}

    return choose
