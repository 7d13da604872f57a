"""The worlds' search against BM25 written out, and whatever may be asked of it."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.search import Index, tokens

TEXTS = [
    "Red cotton shirt, size M",
    "red wool hat",
    "Blue cotton shirt",
    "",
    "2dup ( w1 w2 -- w1 w2 w1 w2 )",
    "red wool hat",
]
WORDS = [*"abcdef", "@", "+loop"]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("bm25s")


def naive(texts: list[str], query: str) -> list[float]:
    words = [Counter(tokens(text)) for text in texts]
    mean = sum(map(Counter.total, words)) / len(texts)
    scores = [0.0] * len(texts)
    for token in tokens(query):
        having = sum(token in one for one in words)
        rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for place, one in enumerate(words):
            length = 1.5 * (0.25 + 0.75 * one.total() / mean)
            scores[place] += rarity * one[token] / (one[token] + length)
    return scores


def test_the_best_come_first_and_equal_ones_in_their_order() -> None:
    index = Index(TEXTS)
    assert index.search("red HAT", 3) == [1, 5, 0]
    assert index.search("red HAT", 2) == [1, 5]
    assert index.search("cotton shirt", 10) == [2, 0]
    assert index.search("2dup", 1) == [4]
    assert index.search("--", 5) == [4]
    assert index.search("red HAT", 3, least=0.5) == [1, 5]


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), min_size=1, max_size=12),
    st.lists(st.sampled_from([*WORDS, "zzz"]), max_size=4).map(" ".join),
    st.integers(0, 5),
)
def test_scores_are_those_of_bm25(texts: list[str], query: str, k: int) -> None:
    if not any(texts):
        return
    matches, scores = Index(texts).search(query, k), naive(texts, query)
    assert len(matches) == min(k, sum(score > 0 for score in scores))
    best = sorted(scores, reverse=True)
    assert [scores[place] for place in matches] == pytest.approx(best[: len(matches)], abs=1e-5)


@pytest.mark.parametrize("query", ["", " ", "\0", "\ud800", "x" * 10**7, "%s {0} \\", "🙂", "'; --", "_", "zzz"])
def test_any_query_is_safe(query: str) -> None:
    assert Index(TEXTS).search(query, 5) in ([], [4])


def test_few_texts_are_searched_too() -> None:
    assert Index(["one"]).search("one", 5) == [0]
    assert Index(["one"]).search("two", 5) == []
    assert Index(["one"]).search("one", 0) == []


@pytest.mark.parametrize("texts", [[], [""], ["", "  "]])
def test_nothing_to_search_in_is_refused(texts: list[str]) -> None:
    with pytest.raises(UserError, match="no text to search in"):
        Index(texts)
