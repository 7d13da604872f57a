"""Questions about Python's standard library, answered by searching and reading its documentation.

Four tools: search with several queries at once, scan a page, open lines of it, and answer. Unlike the output of a program, their
results can be memorised, which is what this world is for. The pages are the docstrings of the running Python's own library, so
rows name its version, and only that version plays them.
"""

import platform
import random
from difflib import get_close_matches
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.docs import pages as docs_pages
from wm_plugin.worlds.docs.quiz import LEVELS, is_right, questions
from wm_plugin.worlds.kit.counted import unfit
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, script
from wm_plugin.worlds.kit.reading import MAX_ARGUMENT, ReadingEnvironment, check_answer, cut, drawn
from wm_plugin.worlds.kit.rows import KINDS, SPLITS, Rows, check_level, row_texts, rows_of, split_of, turn_limit
from wm_plugin.worlds.specs import SPECS

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "DocsEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = 12
MAX_QUERIES, MAX_FOUND = 3, 5  # of one search, and of one query
INSTRUCTION = SPECS["docs"].instruction


class DocsEnvironment(ReadingEnvironment):
    """One episode: a question about an entry of the documentation."""

    def _begin(self) -> None:
        super()._begin()
        self._page = self._entry = ""

    def reset(
        self, answer: str, python: str, page: str = "", entry: str = "", max_turns: int | None = None, **_: Any
    ) -> str:
        """Begin a question whose answer is `answer`; `page` and `entry` are its place, for the expert."""
        page, entry = row_texts("docs", page=page, entry=entry)
        check_answer(answer, is_right, "docs'")
        if not isinstance(python, str) or python != platform.python_version():
            raise UserError(
                f"docs' row is of Python {shown(python).strip(repr(''))}, whose documentation differs from that of "
                f"{platform.python_version()}: make rows with the Python that plays them"
            )
        docs_pages.index()
        self._begin()
        self._answer, self._page, self._entry = answer, page, entry
        self.max_turns = turn_limit(max_turns, MAX_TURNS)
        return f"The documentation has {len(docs_pages.pages())} pages."

    def search_docs(self, queries: str) -> str:
        """Search the documentation.

        Args:
            queries: What to search for, one query a line, at most 3.

        Returns:
            The entries that fit each query best: page, line, name and summary.
        """
        if refusal := self._take_turn(MAX_ARGUMENT, queries=queries):
            return refusal
        searches = [" ".join(line.split()) for line in queries.splitlines() if line.strip()]
        if not 0 < len(searches) <= MAX_QUERIES:
            return self._refuse(f"write 1 to {MAX_QUERIES} queries, one a line")
        return self._results("search_docs", searches, _found)

    def scan_page(self, page: str, words: str = "") -> str:
        """Say how long a page is, and show its headings or the lines that have certain words.

        Args:
            page: The name of a module, e.g. "textwrap".
            words: What to look for, in any case; alternatives are separated by "|". Empty for the headings.

        Returns:
            The size of the page and the numbered lines.
        """
        if refusal := self._take_turn(MAX_ARGUMENT, words=words):
            return refusal
        lines = self._lines(page)
        if isinstance(lines, str):
            return self._refuse(lines)
        alternatives = [word.strip().casefold() for word in words.split("|") if word.strip()]
        if alternatives:
            folded = enumerate((line.casefold() for line in lines), 1)
            hits = [number for number, line in folded if any(word in line for word in alternatives)]
        else:
            hits = [entry.line for entry in docs_pages.pages()[page.strip()].entries]
        return self._hits(f"{page.strip()}: {len(lines)} lines", lines, hits, page.strip(), *alternatives)

    def open_lines(self, page: str, lines: str = "") -> str:
        """Show lines of a page.

        Args:
            page: The name of a module, e.g. "textwrap".
            lines: The first and the last line, e.g. "40-80"; empty for the first lines. At most 60 lines are shown.

        Returns:
            The numbered lines.
        """
        if refusal := self._take_turn(MAX_ARGUMENT, lines=lines):
            return refusal
        found = self._lines(page)
        return self._refuse(found) if isinstance(found, str) else self._open(page.strip(), found, lines)

    def finish(self, answer: str) -> str:
        """Give the answer. This ends the task.

        Args:
            answer: The answer alone.

        Returns:
            Whether the answer is right.
        """
        if refusal := self._take_turn(MAX_ARGUMENT, answer=answer):
            return refusal
        return self._finish(is_right(answer, self._answer, self._page))

    def _lines(self, page: Any) -> list[str] | str:
        """Return a page's lines, or a message that there is no such page."""
        if problem := unfit(page, MAX_ARGUMENT):
            return f"page {problem}"
        if known_page := docs_pages.pages().get(page.strip()):
            return known_page.lines
        near = get_close_matches(page.strip()[:60], docs_pages.pages(), n=1, cutoff=0.0)
        return f"there is no such page; there is {near[0]}"


def _found(query: str) -> list[str]:
    hits = [docs_pages.entries()[place] for place in docs_pages.index().search(query, MAX_FOUND)]
    return [cut(f"{hit.page}:{hit.line} {hit.kind} {hit.name}: {hit.summary}") for hit in hits]


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
) -> Rows:
    """Make rows with the columns `prompt`, `answer`, `page`, `entry`, `python` and `level`.

    standard asks for the name of an entry by the module and the summary of the entry; hard-1 for both names by the summary alone;
    hard-2 for a default of its parameters, or for the class that it is derived from. Training questions are repeated as often as
    `count` needs; each of the others occurs once.

    Args:
        held_out: the same as the split unseen.
        split: train; seen, a tenth of the entries of the packages that training is about; or unseen, other packages.
    """
    check_level(level, LEVELS, "documentation")
    part = split_of(split, held_out, "documentation")
    there_are = f"docs has {{}} {KINDS[part]} questions of level {level}"
    about = None if part == "unseen" else lambda question: f"{question.entry.page} {question.entry.name}"
    tasks = []
    for question in drawn(count, seed, part, questions(level, part == "unseen"), there_are, about):
        place = {"page": question.entry.page, "entry": question.entry.name, "python": platform.python_version()}
        tasks.append({"words": {"task": question.text}, "answer": question.answer, **place, "level": level})
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS, "tool call")


def expert() -> Chooser:
    """Return a policy that searches for the row's entry, scans its page, opens it and answers."""

    def calls(environment: DocsEnvironment) -> list[ToolCall]:
        page = docs_pages.pages()[environment._page]
        entry = next(entry for entry in page.entries if entry.name == environment._entry)
        return [
            ("search_docs", {"queries": entry.summary}),
            ("scan_page", {"page": entry.page, "words": f"{entry.kind} {entry.name}"}),
            ("open_lines", {"page": entry.page, "lines": f"{entry.line}-{entry.line + 8}"}),
            ("finish", {"answer": environment._answer}),
        ]

    return script(calls)


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that searches for words of the documentation, opens pages anywhere, and sometimes answers with a name."""

    def choose(_: DocsEnvironment) -> ToolCall:
        entry = rng.choice(docs_pages.entries())
        tool = rng.choices(["search_docs", "scan_page", "open_lines", "finish"], [6, 5, 5, 1])[0]
        words = entry.summary.split()
        if tool == "search_docs":
            return tool, {"queries": " ".join(rng.sample(words, min(len(words), 4)))}
        if tool == "scan_page":
            return tool, {"page": entry.page, "words": rng.choice(["", *words])}
        if tool == "open_lines":
            first = rng.randrange(1, len(docs_pages.pages()[entry.page].lines) + 1)
            return tool, {"page": entry.page, "lines": f"{first}-{first + rng.randrange(30)}"}
        return tool, {"answer": entry.name}

    return choose
