"""deepdive: questions that take several pages, answered by searching a web and reading it ("True Agents Model the World").

The four tools and what they take are the paper's, which searches the real web. Here the web is local, made of a number or read
from a file, so that episodes can be repeated. The pages, the questions, how an answer is compared and the limits of a result are
ours.
"""

import random
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.rule_places import TooMuchError, Work, regex, searched
from wm_plugin.worlds.deepdive.web import LEVELS, Page, about, drawn_from, is_right, web_of
from wm_plugin.worlds.kit.counted import unfit
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, script
from wm_plugin.worlds.kit.reading import MAX_ARGUMENT, ReadingEnvironment, check_answer, cut, drawn
from wm_plugin.worlds.kit.rows import KINDS, SPLITS, Rows, check_level, row_texts, rows_of, split_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

__all__ = ["INSTRUCTION", "LEVELS", "SPLITS", "DeepdiveEnvironment", "dataset_rows", "expert", "wanderer"]

MAX_TURNS = 200  # paper: its default
MAX_QUERIES, MAX_FOUND, MAX_PATTERNS = 5, 4, 5  # ours: of a search, of a query, and of a scan
TRAIN, UNSEEN = "1", "2"  # the webs of the splits
INSTRUCTION = SPECS["deepdive"].instruction


@described_as("deepdive")
class DeepdiveEnvironment(ReadingEnvironment):
    """One episode: a question about a web."""

    def _begin(self) -> None:
        super()._begin()
        self._unit, self._trail = "", list[str]()

    def reset(
        self, corpus: str, answer: str, unit: str = "", trail: str = "", max_turns: int | None = None, **_: Any
    ) -> str:
        """Begin a question.

        Args:
            corpus: the number of a made web, or the path of a file of pages.
            answer: the right answer; `unit` is what it may leave out.
            trail: the titles of the pages that lead to it, one a line, for the expert.
        """
        corpus, unit, trail = row_texts("deepdive", corpus=corpus, unit=unit, trail=trail)
        check_answer(answer, is_right, "deepdive's")
        limit = turn_limit(max_turns, MAX_TURNS)
        self._web = web_of(corpus)
        regex("")  # raises here, and not in an episode, if RE2 is missing; so does the index
        assert self._web.index
        self._begin()
        self._answer, self._unit, self._trail = answer, unit, trail.splitlines()
        self.max_turns = limit
        return f"The web has {len(self._web.pages)} pages."

    def search_web(self, queries: list[str]) -> str:
        self._take_turn()
        if problem := _unfit_list(queries, "queries", MAX_QUERIES):
            return self._refuse(problem)

        def found(query: str) -> list[str]:
            results = enumerate(self._web.find(query, MAX_FOUND), 1)
            return [f"{place}. {cut(page.title)}\n   {page.url}\n   {cut(line)}" for place, (page, line) in results]

        return self._results("search_web", queries, found)

    def scan_page(self, url: str, patterns: list[str] | None = None) -> str:
        self._take_turn()
        page = self._page(url)
        if isinstance(page, str):
            return self._refuse(page)
        size = f"{page.url}\ntitle: {cut(page.title)}\nsize: {len(page.lines)} lines, {sum(map(len, page.lines))} characters"
        if not patterns and patterns in (None, []):
            self._note(True, "scan_page", page.url)
            return self._observe(size)
        if problem := _unfit_list(patterns, "patterns", MAX_PATTERNS):
            return self._refuse(problem)
        try:
            hits = _matching(page, patterns or [])
        except TooMuchError:
            return self._refuse("the patterns take too long on this page; write simpler ones")
        except ValueError as error:
            return self._refuse(" ".join(str(error).split())[:300])
        return self._hits(size, page.lines, hits, page.url, *(patterns or []))

    def open_lines(self, url: str, lines: str = "") -> str:
        if refusal := self._take_turn(MAX_ARGUMENT, lines=lines):
            return refusal
        page = self._page(url)
        return self._refuse(page) if isinstance(page, str) else self._open(page.url, page.lines, lines)

    def finish(self, answer: str) -> str:
        if refusal := self._take_turn(MAX_ARGUMENT, answer=answer):
            return refusal
        return self._finish(is_right(answer, self._answer, self._unit))

    def _page(self, url: Any) -> Page | str:
        """Return the page of an address, or a message that there is none."""
        if problem := unfit(url, MAX_ARGUMENT):
            return f"url {problem}"
        return self._web.pages.get(url.strip()) or "there is no page of this address; take one that a search has shown"


def _unfit_list(values: Any, name: str, most: int) -> str | None:
    """Return why an argument is no list of at most `most` texts, none of them empty; None if it is one."""
    if not isinstance(values, list) or not 0 < len(values) <= most:
        return f"{name} must be a list of 1 to {most} texts"
    for value in values:
        if problem := unfit(value, MAX_ARGUMENT):
            return f"one of the {name} {problem}"
        if not value.strip():
            return f"one of the {name} is empty"
    return None


def _matching(page: Page, patterns: list[str]) -> list[int]:
    """Return the numbers of the lines that match one of the patterns, which RE2 reads in linear time.

    Raises:
        ValueError: a pattern is malformed.
        TooMuchError: the work is too much.
    """
    compiled, work = [regex(pattern, True) for pattern in patterns], Work(TooMuchError)
    return [
        number
        for number, line in enumerate(page.lines, 1)
        if any(one.search(searched(one, line, work)) for one in compiled)
    ]


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    split: str | None = None,
    max_turns: int = MAX_TURNS,
    corpus: str | None = None,
    questions: str | None = None,
) -> Rows:
    """Make rows with the columns `prompt`, `corpus`, `answer`, `unit`, `trail` and `level`.

    standard asks for a number or a day that is one relation away, hard-1 two, and hard-2 describes where to begin instead of
    naming it. Training questions are repeated as often as `count` needs; each of the others occurs once.

    Args:
        held_out: the same as the split unseen; with a corpus of your own, the tenth of its questions that training never has.
        split: train; seen, a tenth of the pages that questions about the same web begin at; or unseen, about another web.
        corpus: a file of pages of your own, one JSON object a line with `title`, `text` and perhaps `url`.
        questions: its questions, one JSON object a line with `question` and `answer`.
    """
    check_level(level, LEVELS, "web")
    part = split_of(split, held_out, "web")
    own = corpus is not None or questions is not None
    if own and (split == "unseen" or level != "standard"):
        what = "split 'unseen'" if split == "unseen" else f"level {level!r}"
        raise UserError(f"deepdive: a corpus of your own has no {what}; leave it out")
    web = corpus or (UNSEEN if part == "unseen" else TRAIN)
    there_are = f"deepdive has {{}} {KINDS[part]} questions of level {level}"
    kept_by = about if own or part != "unseen" else None
    tasks = []
    for question in drawn(count, seed, part, drawn_from(web, questions, level), there_are, kept_by):
        task = {"words": {"task": question.text}, "corpus": web, "answer": question.answer, "unit": question.unit}
        tasks.append({**task, "trail": "\n".join(question.trail), "level": level})
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS)


def expert() -> Chooser:
    """Return a policy that searches for each page that leads to the answer by its title, opens it, and answers."""

    def calls(environment: DeepdiveEnvironment) -> list[ToolCall]:
        made: list[ToolCall] = []
        for title in environment._trail:
            page = environment._web.by_title[title]
            made += [("search_web", {"queries": [title]}), ("open_lines", {"url": page.url})]
        if made:  # the last page is looked at before it is opened
            made.insert(-1, ("scan_page", {"url": made[-1][1]["url"]}))
        return [*made, ("finish", {"answer": environment._answer})]

    return script(calls)


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that searches for words of pages, scans and opens pages anywhere, and now and then answers with a title."""

    def choose(environment: DeepdiveEnvironment) -> ToolCall:
        page = rng.choice(list(environment._web.pages.values()))
        words = [*page.title.split(), *rng.choice(page.lines or [""]).split()]
        tool = rng.choices(["search_web", "scan_page", "open_lines", "finish"], [6, 5, 5, 1])[0]
        if tool == "search_web":
            queries = [" ".join(rng.sample(words, min(len(words), 3))) for _ in range(rng.randint(1, 3))]
            return tool, {"queries": queries}
        if tool == "scan_page":
            return tool, {"url": page.url, **({"patterns": [rng.choice(words)]} if rng.random() < 0.7 else {})}
        if tool == "open_lines":
            first = rng.randrange(1, len(page.lines) + 1)
            return tool, {"url": page.url, "lines": rng.choice(["", f"{first}-{first + rng.randrange(20)}"])}
        return tool, {"answer": page.title}

    return choose
