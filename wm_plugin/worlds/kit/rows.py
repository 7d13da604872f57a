"""Rows of a dataset: checks of their columns, splits, seeds, and prompts that name the number of turns."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting.world import is_number
from wm_plugin.hosting.world import turn_limit as turn_limit

T = TypeVar("T")
Rows = list[dict[str, Any]]
LARGEST = 2**63 - 1  # of a table's whole numbers
# For worlds that can tell them apart: new tasks in surroundings that training has too, and in surroundings that it has not.
SPLITS = ("train", "seen", "unseen")
KINDS = {"train": "training", "seen": "seen", "unseen": "held-out"}  # of rows, in messages


def check_level(level: str, levels: Iterable[str], world: str) -> None:
    """Raise a UserError if the world has no such level."""
    if not isinstance(level, str) or level not in list(levels):
        raise UserError(f"the {world} has no level {unknown(level, levels)}")


def unknown(name: Any, names: Iterable[str]) -> str:
    """A name that does not exist, and the nearest one, for a message."""
    text = shown(name)
    return f"{text}{nearest(text.strip(repr('')), names)}"


def split_of(split: str | None, held_out: bool, world: str) -> str:
    """Return which of `SPLITS` the arguments of `dataset_rows` mean: without `split`, unseen if `held_out` and else train."""
    if split is None:
        return "unseen" if held_out else "train"
    if not isinstance(split, str) or split not in SPLITS:
        raise UserError(f"the {world} has no split {unknown(split, SPLITS)}")
    if held_out:
        raise UserError(f"held_out and split {split!r} both say which rows of the {world}: leave held_out out")
    return split


def draws(seed: int, split: str | bool) -> random.Random:
    """Return the generator that chooses the rows of a split, or of the training (False) or held-out (True) rows."""
    return random.Random(f"{seed}/seen" if split == "seen" else seed * 2 + (split in ("unseen", True)))


def world_seed(rng: random.Random, held_out: bool, tens: int = 10**8) -> int:
    """Draw a seed that is divisible by 10 if it is held out, and is not otherwise."""
    return rng.randrange(tens) * 10 + (0 if held_out else rng.randint(1, 9))


def repeated(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """Return `count` items: all of them shuffled, and shuffled again as often as needed."""
    picks: list[T] = []
    while len(picks) < count:
        picks += rng.sample(items, len(items))
    return picks[:count]


def distinct(count: int, draw: Callable[[], T]) -> list[T]:
    """Draw until there are `count` different values."""
    values: dict[T, None] = {}
    while len(values) < count:
        values[draw()] = None
    return list(values)


def check_count(count: int, available: int, there_are: str) -> None:
    """Raise a UserError if fewer rows are available; `{}` in `there_are` stands for their number."""
    if count > available:
        raise UserError(f"{there_are.format(available)}; write a count up to that, not {count}")


def row_number(value: Any, column: str, world: str, most: int = LARGEST) -> int:
    """Return the whole number from 0 to `most` in a row's column."""
    if is_number(value) and 0 <= value <= most and value % 1 == 0:
        return int(value)
    bound = ">= 0" if most == LARGEST else f"from 0 to {most}"
    raise UserError(f"{world}: a row's column `{column}` needs a whole number {bound}, not {shown(value)}")


def row_text(value: Any, column: str, world: str) -> str:
    """Return the text in a row's column, which may be a number; None, an empty cell of a table, is an empty text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):  # an integer of more digits than Python writes
            return str(value)
    raise UserError(f"{world}: a row's column `{column}` needs a text, not {shown(value)}")


def row_texts(world: str, **columns: Any) -> list[str]:
    """Return the texts in a row's columns."""
    return [row_text(value, column, world) for column, value in columns.items()]


def rows_of(
    instruction: str, tasks: Iterable[Mapping[str, Any]], max_turns: int, usual: int, unit: str = "turn"
) -> Rows:
    """Make rows: each task's columns, with a prompt before them and, unless it is the usual number, `max_turns` after them.

    Args:
        instruction: of the prompts; `{turns}` in it becomes words for `max_turns`.
        tasks: the columns of each. Texts in a mapping `words` take the places of names in braces, such as `{task}`.
        usual: the turns that `reset` allows by default.
        unit: what the world calls a turn.
    """
    if type(max_turns) is not int or max_turns < 1:
        raise UserError(f"max_turns is {shown(max_turns)}; write a whole number of turns >= 1")
    turns = f"one {unit}" if max_turns == 1 else f"at most {max_turns} {unit}s"
    more = {} if max_turns == usual else {"max_turns": max_turns}
    rows = []
    for task in tasks:
        columns, content = dict(task), instruction
        for name, text in ({"turns": turns} | columns.pop("words", {})).items():
            content = content.replace(f"{{{name}}}", text)
        rows.append({"prompt": [{"role": "user", "content": content}], **columns, **more})
    return rows
