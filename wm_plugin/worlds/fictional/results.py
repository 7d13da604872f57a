"""Searches by rule: pages of several grades of relevance in no order, each with a line that teases.

This keeps the paper's instruction to its simulator (Qwen-AgentWorld, section 6.1.2): a result shows a title and a teaser, which
names what a page states and never the value, and highly relevant, moderately relevant and background pages are mixed. The number
of pages of each grade is ours.
"""

import random
from collections.abc import Mapping, Sequence

from wm_plugin.worlds.fictional.pages import Page
from wm_plugin.worlds.kit.search import MAX_QUERY, Index, tokens

NOTHING = "Nothing was found."
HIGH, MODERATE, BACKGROUND = 4, 2, 2  # pages of a result
_MODERATE_FROM = 12  # ranks that moderately relevant pages come from, after the first


class Search:
    """Finds pages. Equal queries have equal results."""

    def __init__(self, pages: Mapping[str, Page], seed: int) -> None:
        self._pages, self._seed = list(pages.values()), seed
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


def surface(pages: Mapping[str, Page]) -> str:
    """Return all that searches can ever show, as `holds` takes it."""
    return plain("\n".join(text for page in pages.values() for text in (page.id, page.title, *page.teasers)))


def plain(text: str) -> str:
    """Write a text as its words in lower case, with a space around each."""
    return f" {' '.join(tokens(text))} "


def holds(words: str, text: str) -> bool:
    """Return whether a text is in another, which is `plain`, as whole words."""
    return plain(text) in words
