"""A problem as a family draws it, and what families make their tests of."""

import random
from collections.abc import Callable
from typing import NamedTuple

TESTS = 5  # of a problem, beside the example
Case = tuple[str, str]  # a line of Forth, and what it prints


class Draft(NamedTuple):
    """A problem without its name and level. `numbers` tells it from others of its family."""

    numbers: tuple[object, ...]
    task: str
    solution: str
    wrong: str
    cases: list[Case]


Family = Callable[[random.Random, str], Draft]


def one_too_many(numbers: tuple[int, ...], task: str, code: str, cases: list[Case]) -> Draft:
    """A draft of code with a gap, {}, for the last of its numbers, which is larger by one in the wrong solution."""
    return Draft(numbers, task, code.format(numbers[-1]), code.format(numbers[-1] + 1), cases)


def numeric(
    rng: random.Random, word: str, function: Callable[..., int | tuple[int, ...]], *inputs: list[int]
) -> list[Case]:
    """Cases that push numbers and print all results, the top first. `inputs` has what each number is drawn from. The first test,
    which is hidden, has the first of each, which should be the edge; the next has a number below that is to stay."""
    drawn = [tuple(rng.choice(values) for values in inputs), tuple(values[0] for values in inputs)]
    while len(drawn) < TESTS + 1:
        drawn.append(tuple(rng.choice(values) for values in inputs))
    cases = []
    for place, values in enumerate(drawn):
        results = function(*values)
        results = results if isinstance(results, tuple) else (results,)
        below = ["77"] if place == 2 else []
        line = " ".join([*below, *map(str, values), word, *["."] * (len(results) + len(below))])
        cases.append((line, " ".join([*map(str, reversed(results)), *below])))
    return cases


def printing(word: str, function: Callable[..., str], *arguments: tuple[object, ...]) -> list[Case]:
    """Cases of a word that prints by itself; a text becomes a string of Forth."""
    cases = []
    for values in arguments:
        pushed = [f's" {value}"' if isinstance(value, str) else str(value) for value in values]
        cases.append((" ".join([*pushed, word]), " ".join(function(*values).split())))
    return cases


def span(low: int, high: int) -> list[int]:
    return list(range(low, high + 1))


def digits(number: int, base: int) -> list[int]:
    """The lowest first."""
    places = [number % base]
    while number := number // base:
        places.append(number % base)
    return places


def texts(rng: random.Random, edge: str, others: list[str]) -> list[tuple[str]]:
    """Arguments of cases: others' texts, and the edge as the first that is hidden."""
    example, *hidden = rng.sample(others, TESTS)
    return [(text,) for text in (example, edge, *hidden)]
