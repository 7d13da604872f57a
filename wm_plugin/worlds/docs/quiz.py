"""Questions about the pages, and whether an answer is right."""

import zlib
from collections import Counter
from functools import cache
from typing import NamedTuple

from wm_plugin.worlds.docs import pages as docs_pages
from wm_plugin.worlds.docs.pages import Entry

LEVELS = ("standard", "hard-1", "hard-2")


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
