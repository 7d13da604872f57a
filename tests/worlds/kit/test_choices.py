import random
from typing import Any

import pytest

from wm_plugin.worlds.kit.choices import MAX_CHARACTERS, Choices, choices

CLOSED = {
    "U or D.": ["U", "D"],
    "One of U, D, L, R (or move up), or several.": ["U", "D", "L", "R"],
    "Which door: one of left, right": ["left", "right"],
    "Which one, left or right": ["left", "right"],
    "The side: left or right.": ["left", "right"],
    '"up" or "down"': ["up", "down"],
    "`a`, `b` or `c`": ["a", "b", "c"],
    'The direction, "go up" or "go down".': ["go up", "go down"],
    "left|right": ["left", "right"],
    "What to do. There is move up, pickup and dropoff.": ["move up", "pickup", "dropoff"],
    "Level (0-3).": range(4),
    "A number from -1 to 2; more is refused.": range(-1, 3),
    "Between 2 and 4.5": None,
    "2024-01-02, a date": None,
    "0, 1 or 2": ["0", "1", "2"],
    "Words to look for.": None,
    "The name or the number of a page": None,
    "One of the rooms, or a thing": None,
    "": None,
}


@pytest.mark.parametrize("description", CLOSED)
def test_a_description_names_values(description: str) -> None:
    values = CLOSED[description]
    assert choices(description) == (None if values is None else Choices(values))


def test_examples_are_drawn_beside_other_values() -> None:
    found = choices('A guess of five letters, e.g. "crane", or several.')
    assert found == Choices(["crane"], closed=False)
    rng = random.Random(0)
    drawn = [found.draw(rng, ["look"]) for _ in range(100)]
    assert 30 < drawn.count("crane") < 70
    assert set(drawn) == {"crane", "look"}


def test_numbers_are_numbers() -> None:
    found: Any = [choices(text) for text in ("from 3 to 1", "0, 1 or 2", "left or 2", 'e.g. "7"')]
    assert [list(one.numbers) for one in found] == [[1, 2, 3], [0, 1, 2], [], [7]]


def test_a_long_description_is_read_up_to_a_bound() -> None:
    assert choices("x" * MAX_CHARACTERS + " U or D") is None
    assert choices(", ".join(["x"] * 10_000) + " or y") is None
