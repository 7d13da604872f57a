"""Questions about Python's standard library, answered by searching and reading its documentation.

Four tools: search with several queries at once, scan a page, open lines of it, and answer. Unlike the output of a program, their
results can be memorised, which is what this world is for. The pages are the docstrings of the running Python's own library, so
rows name its version, and only that version plays them.
"""

import platform
import random
import zlib
from collections import Counter
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.docs import pages as docs_pages
from wm_plugin.worlds.docs.pages import Entry
from wm_plugin.worlds.kit.counted import unfit
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, script
from wm_plugin.worlds.kit.reading import MAX_ARGUMENT, ReadingEnvironment, check_answer, cut, drawn
from wm_plugin.worlds.kit.rows import KINDS, SPLITS, Rows, check_level, row_texts, rows_of, split_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "DocsEnvironment", "dataset_rows", "expert", "wanderer"]

LEVELS = ("standard", "hard-1", "hard-2")
MAX_TURNS = 12
MAX_QUERIES, MAX_FOUND = 3, 5  # of one search, and of one query
INSTRUCTION = SPECS["docs"].instruction


@described_as("docs")
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
        if refusal := self._take_turn(MAX_ARGUMENT, queries=queries):
            return refusal
        searches = [" ".join(line.split()) for line in queries.splitlines() if line.strip()]
        if not 0 < len(searches) <= MAX_QUERIES:
            return self._refuse(f"write 1 to {MAX_QUERIES} queries, one a line")
        return self._results("search_docs", searches, _found)

    def scan_page(self, page: str, words: str = "") -> str:
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
        if refusal := self._take_turn(MAX_ARGUMENT, lines=lines):
            return refusal
        found = self._lines(page)
        return self._refuse(found) if isinstance(found, str) else self._open(page.strip(), found, lines)

    def finish(self, answer: str) -> str:
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


class Question(NamedTuple):
    """A question, its answer, and the entry that has it."""

    text: str
    answer: str
    entry: Entry


def is_right(submission: str, answer: str, page: str = "") -> bool:
    """Compare two names or values, ignoring quotes, backticks, empty parentheses, case and the page's name."""
    expected, prefix = _plain(answer), f"{page.casefold()}."
    text = _plain(submission)
    return text == expected or (bool(page) and text == prefix + expected)


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("`'\". ").removesuffix("()").casefold()


def is_held_out(page: str) -> bool:
    """Return whether a module is held out: a fifth of them, by top package, so that no question for training names one."""
    return zlib.crc32(page.partition(".")[0].encode()) % 5 == 0


@cache
def questions(level: str, held_out: bool) -> list[Question]:
    """Return all questions of a level about the modules of a split."""
    entries = docs_pages.entries()
    summaries = Counter(entry.summary for entry in entries)
    clear = [
        entry
        for entry in entries
        if is_held_out(entry.page) == held_out
        and summaries[entry.summary] == 1  # no other entry has the same summary
        and 25 <= len(entry.summary) <= docs_pages.SUMMARY
        and entry.kind != "module"
        and entry.name.rpartition(".")[2].casefold() not in entry.summary.casefold()
    ]
    return [question for entry in clear for question in _ask(level, entry)]


def _ask(level: str, entry: Entry) -> list[Question]:
    sentence = f'"{entry.summary}"'
    if level == "standard":
        kind = f"{entry.kind} of the module {entry.page}"
        return [Question(f"Which {kind} is documented as {sentence}?", entry.name, entry)]
    if level == "hard-1":
        answer = "Answer with the module and the name, such as json.dumps."
        text = f"Which {entry.kind} is documented as {sentence}? {answer}"
        return [Question(text, f"{entry.page}.{entry.name}", entry)]
    text = f"A {entry.kind} is documented as {sentence}. What is the default of its parameter"
    questions = [Question(f"{text} {name}?", value, entry) for name, value in entry.defaults.items() if _plain(value)]
    if len(entry.bases) == 1:
        text = f"Which class is that derived from which is documented as {sentence}?"
        questions.append(Question(text, entry.bases[0], entry))
    return questions


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
