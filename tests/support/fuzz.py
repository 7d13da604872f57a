"""Attacks with random inputs, for as long as there is time: seconds by day, minutes at night (`make test-nightly`).

By day the seeds are 0, 1, 2, ...; at night they begin somewhere else each time. A failure tells its seed, and
`WM_FUZZ_SEED=<seed> pytest tests/test_fuzz.py -k <name>` runs that one alone.
"""

import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from support.timing import interrupted

DAY = 3.0  # seconds of an attack
SECONDS = float(os.environ.get("WM_FUZZ_SECONDS", DAY))
LONGEST = 30.0  # seconds of the processor for one input
MEMORY = 1_000_000  # KB that the process may grow by

TEXTS = [
    "", " ", "\n", "\x00", "\x1b[2J", "\ud800", "é", "\u0301" * 50, "\u202e", "a", "a b", "a\tb\r\n", "-", "--", "0",
    "-1", "1e999", "9" * 5000, "1_0", "٣", "NaN", "Infinity", "true", "null", "[]", "{}", "[" * 3000, '["' * 3000,
    '{"a":' * 3000, "]", "}", '{"a": 1, "a": 2}', '{"name": "f", "arguments": {}}', '{"name": [1]}',
    '{"name": "f", "arguments": "{}"}', '"', "'", "\\", ";", "<tool_call>", "</tool_call>", "<tool_call>\n",
    "<tool_response>", "</tool_response>", "<think>", "</think>", "<tools>", "</s>", "<next_state>", "</next_state>",
    "<final_evaluation>", "</final_evaluation>", "<|im_start|>", "<|im_end|>", "<script>", "{{ x }}", "user\n",
    "assistant\n", "\nuser\n<tool_response>", "> go", "Thought: ", "Action: ", "**Action:**", "```", "$x", "%s",
    "../../x", '{"score": 1}', '{"format": 5}', "score: 5", "4/5", "yes", "no", "first", "1", "x" * 70_000,
    "a " * 5000, "<" * 3000, "\n" * 3000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 7, 10**30, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), [], {}, [[]],
    [None], {"a": 1}, {"": {}}, [{}], ["a"], {"role": "assistant"}, {"function": "f"}, {"function": {"name": None}},
    [[[[[[]]]]]],
]  # fmt: skip


def text(draw: random.Random, most: int = 6) -> str:
    return "".join(draw.choice(TEXTS) for _ in range(draw.randint(0, most)))


def value(draw: random.Random, levels: int = 3) -> Any:
    """JSON, mostly."""
    kind = draw.randrange(6 if levels else 3)
    if kind == 0:
        return draw.choice(VALUES)
    if kind < 3:
        return text(draw, 2)
    if kind < 4:
        return [value(draw, levels - 1) for _ in range(draw.randint(0, 4))]
    return {text(draw, 1): value(draw, levels - 1) for _ in range(draw.randint(0, 4))}


def mutated(draw: random.Random, item: Any, times: int | None = None) -> Any:
    """A document with some of its parts replaced, dropped, doubled or nested."""
    for _ in range(draw.choice((1, 1, 2, 5)) if times is None else times):
        item = _mutated(draw, item)
    return item


def _mutated(draw: random.Random, item: Any) -> Any:
    return _replaced(draw, item, draw.choice(list(_places(item))))


def _places(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ():
        yield from _places(inner, (*path, key))


def _replaced(draw: random.Random, item: Any, path: tuple[Any, ...]) -> Any:
    if len(path) > 1 or (path and draw.random() < 0.7):
        copy = item.copy()
        copy[path[0]] = _replaced(draw, item[path[0]], path[1:])
        return copy
    if path:  # an item or a key is dropped, doubled or added
        copy = item.copy()
        if draw.random() < 0.4:
            del copy[path[0]]
        elif isinstance(copy, list):
            copy.insert(draw.randrange(len(copy) + 1), draw.choice((copy[path[0]], value(draw))))
        else:
            copy[draw.choice((text(draw, 1), draw.choice(list(copy))))] = draw.choice((copy[path[0]], value(draw)))
        return copy
    how = draw.random()
    if isinstance(item, str) and how < 0.5:
        place = draw.randint(0, len(item))
        return item[:place] + text(draw, 2) + item[draw.randint(place, len(item)) :]
    return [item] if how < 0.6 else {"a": item} if how < 0.65 else value(draw)


def attack(once: Callable[[random.Random], object], share: float = 1.0) -> None:
    """Run `once` with one seed after the other for a share of the time of an attack.

    Whatever it raises is a failure, and so is an input that takes minutes or gigabytes.
    """
    alone = os.environ.get("WM_FUZZ_SEED")
    first = int(alone) if alone else 0 if SECONDS <= DAY else time.time_ns() // 1_000_000
    end = time.monotonic() + SECONDS * share
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tried = 0
    for seed in count(first):
        try:
            with interrupted(LONGEST):
                once(random.Random(seed))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < MEMORY, f"{grown} KB more memory"
        except BaseException as error:
            error.add_note(f"seed {seed}: WM_FUZZ_SEED={seed} runs it alone")
            raise
        tried += 1
        if alone or time.monotonic() > end:
            break
    print(f"{tried} inputs from seed {first} on")
