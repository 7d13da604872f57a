"""BM25 over a fixed list of texts: the search of the worlds forth, docs and shop."""

import re
from collections.abc import Sequence
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError

TOKEN = re.compile(r"[^\W_]+|[^\w\s]+|_+")  # words and numbers; runs of signs are words of Forth
MAX_QUERY = 1000  # characters of a query that are read


class Index:
    """Finds texts by their words, whatever their case (BM25 in Lucene's form, k1 1.5 and b 0.75).

    Args:
        texts: at least one of them with a word in it; their places are what `search` returns.

    Raises:
        UserError: there is nothing to search in.
        MissingExtraError: bm25s is not installed.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        bm25s = _library()
        words = [tokens(text) for text in texts]
        if not any(words):
            raise UserError("there is no text to search in: give at least one with a word")
        self._scorer = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        self._scorer.index(words, show_progress=False)

    def search(self, query: str, k: int, least: float = 0.0) -> list[int]:
        """The places of at most `k` texts, the best first; equal ones in their order.

        Any text is a query; one that shares no word with the texts finds nothing.

        Args:
            least: the score that a text needs; texts without any of the words are never found.
        """
        words = tokens(query[:MAX_QUERY])
        if not words or k < 1:
            return []
        # as Python's numbers, whose sorting is stable
        scores = self._scorer.get_scores(words).tolist()
        found = [place for place, score in enumerate(scores) if score > 0 and score >= least]
        return sorted(found, key=lambda place: -scores[place])[:k]


def tokens(text: str) -> list[str]:
    """The words that a text is searched by, in lower case."""
    return TOKEN.findall(text.lower())


def _library() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtraError("Search", "bm25s", "search") from None
    return bm25s
