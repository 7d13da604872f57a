"""Read from a parameter's description which values it takes: "One of U, D, L, R", "left or right", "from 0 to 3"."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

MAX_CHARACTERS = 1000  # of a description; what follows is not read
MAX_WORDS = 2  # of a value in a list without quotes: more are part of a sentence
_LEADS = ("one of ", "either ", "there is ", "there are ", "must be ", "can be ")
_EXAMPLES = ("e.g.", "for example", "such as", "for instance")
_NO_VALUES = {
    "a",
    "an",
    "the",
    "any",
    "several",
    "some",
    "your",
    "its",
    "their",
    "e.g.",
    "i.e.",
}  # begin no value of a list
_QUOTED = re.compile(r'"([^"]{1,80})"|`([^`]{1,80})`')
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_RANGE = re.compile(
    r"(?:from|between|[(\[,]|^)\s?(-?[0-9]{1,9})\s?(?:-|–|to|and|\.\.)\s?(-?[0-9]{1,9})(?![\w-]|\.[0-9])", re.IGNORECASE
)


@dataclass(frozen=True)
class Choices:
    """Values that a description names. If it is `closed` there are no others; else they are examples."""

    values: Sequence[Any]
    closed: bool = True

    @property
    def numbers(self) -> Sequence[int]:
        """The values if all are whole numbers; else nothing."""
        if isinstance(self.values, range):
            return self.values
        return [int(value) for value in self.values] if all(map(_WHOLE.fullmatch, self.values)) else ()

    def draw(self, rng: random.Random, others: Sequence[Any]) -> Any:
        """Return one of the values; one of `others` half of the time if the values are examples."""
        return rng.choice(self.values if self.closed or rng.random() < 0.5 else others)


def choices(description: str) -> Choices | None:
    """Return the values that a description names; None if it names none."""
    return _choices(description[:MAX_CHARACTERS])


@lru_cache(maxsize=1024)
def _choices(description: str) -> Choices | None:
    text = " ".join(description.split())
    lower = text.lower()
    for lead in _LEADS:
        if (place := lower.find(lead)) >= 0 and (listed := _listed(text[place + len(lead) :])):
            return Choices(listed)
    if found := _RANGE.search(text):
        first, last = sorted(map(int, found.groups()))
        return Choices(range(first, last + 1))
    if listed := _alternatives(text):
        return Choices(listed)
    quoted = [one or other for one, other in _QUOTED.findall(text)]
    return Choices(quoted, len(quoted) > 1 and not any(mark in lower for mark in _EXAMPLES)) if quoted else None


def _listed(text: str) -> list[str]:
    """Return the values of a list at the start of a text; empty if it is no list."""
    values = _parts(text)
    fit = all(len(value.split()) <= MAX_WORDS and value.split()[0].lower() not in _NO_VALUES for value in values)
    return values if fit and len(values) > 1 else []


def _alternatives(text: str) -> list[str]:
    """Return the single words that end the first sentence of a text, if it offers them by "or"."""
    sentence = text.rpartition(": ")[2] if ". " not in text else text
    if " or " not in sentence and "|" not in sentence:
        return []
    values = list(takewhile(lambda value: " " not in value, reversed(_parts(sentence))))
    return values[::-1] if len(values) > 1 else []


def _parts(text: str) -> list[str]:
    """Split a text at commas, "or" and "and", up to the end of its sentence or a remark in brackets."""
    for end in (". ", "; ", ": ", " ("):
        text = text.partition(end)[0]
    for word in (" or ", " and ", "|"):
        text = text.replace(word, ",")
    values = (value.strip().strip("\"'`") for value in text.rstrip(". ;:").split(","))
    return [value for value in values if value.strip()]
