"""BM25 search over a fixed list of texts."""

import re
from collections.abc import Sequence

from wm_plugin.errors import MissingExtraError, UserError

TOKEN = re.compile(r"[^\W_]+|[^\w\s]+|_+")  # words and numbers; runs of signs too, which are words in Forth
MAX_QUERY = 1000  # characters of a query that are read


class Index:
    """Finds texts by their words, in any case (BM25 in Lucene's form, k1 = 1.5 and b = 0.75).

    Args:
        texts: `search` returns their indices. At least one must have a word.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            import bm25s
        except ImportError:
            raise MissingExtraError("Search", "bm25s", "search") from None
        words = [tokens(text) for text in texts]
        if not any(words):
            raise UserError("there is no text to search in: give at least one with a word")
        self._scorer = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        self._scorer.index(words, show_progress=False)

    def search(self, query: str, k: int, least: float = 0.0) -> list[int]:
        """Return the indices of at most `k` texts, the best first; texts of equal score in their order.

        Any text is a query. A text that shares no word with it, or scores below `least`, is not returned.
        """
        words = tokens(query[:MAX_QUERY])
        if not words or k < 1:
            return []
        scores = self._scorer.get_scores(words).tolist()
        matches = [index for index, score in enumerate(scores) if score > 0 and score >= least]
        return sorted(matches, key=lambda index: -scores[index])[:k]  # a stable sort


def tokens(text: str) -> list[str]:
    """Return the words of a text in lower case, as it is indexed."""
    return TOKEN.findall(text.lower())
