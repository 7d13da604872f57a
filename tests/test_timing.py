"""The comparison of times that other tests rely on: it passes what is linear, and fails what is not, without taking long."""

import math
import re
import time

import pytest

from support import timing
from support.timing import repeated, too_slow

LINEAR = {
    "a sum": lambda text: sum(map(ord, text)),
    "words": str.split,
    "a sorted text": lambda text: sorted(text, reverse=True),
    "constant work": lambda text: None,
    "what raises": lambda text: int(text),
    "work that is bounded": lambda text: (
        [text.count("b") for _ in range(min(len(text), 2000))] if len(text) < 2000 else 0
    ),
    "a pattern": re.compile("a+b?").findall,
    "a step": lambda text: sum(range(200_000)) if len(text) < 10_000 else sum(range(4_000_000)),
    "a slow start": lambda text: sum(range(300_000)) + len(text),
}
NOT_LINEAR = {
    "each beginning": lambda text: [text[:end].count("b") for end in range(len(text))],
    "pairs": lambda text: sum(1 for a in text for b in text if a == b),
    "a pattern": re.compile(r"\s+$").search,
    "half of it linear": lambda text: (text.split("b"), [text.count("b") for _ in range(len(text) // 50)]),
    "three repetitions": re.compile(r"(\s*)(\s*)(\s*)x").match,
    "beyond any time": re.compile(r"(\s*\s*)*x").match,
    "the power of 1.75": lambda text: sum(range(int(len(text) ** 1.75))),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_passes(name):
    assert too_slow(LINEAR[name], repeated(" a")) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_fails_soon(name, monkeypatch):
    monkeypatch.setattr(timing, "LONGEST", 0.2)
    start = time.thread_time()
    assert "s for a size of" in (too_slow(NOT_LINEAR[name], repeated(" ", "", "!")) or "")
    assert time.thread_time() - start < 10


def test_what_takes_for_ever_is_interrupted(monkeypatch):
    monkeypatch.setattr(timing, "LONGEST", 0.1)
    assert timing.seconds(re.compile(r"(a*a*)*b").match, "a" * 5000) == math.inf
