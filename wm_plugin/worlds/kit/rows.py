"""For an environment's rows: check the values of their columns, choose a split, and write the number of turns into a prompt."""

import numbers
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from wm_plugin.errors import UserError, nearest, shown

LARGEST = 2**63 - 1  # of a table's whole numbers
MOST_TURNS = 10**9  # more are the same as this
# For worlds that can tell them apart: new tasks in surroundings that training has too, and in surroundings that it has not.
SPLITS = ("train", "seen", "unseen")


def check_level(level: str, levels: Iterable[str], world: str) -> None:
    """Raise a UserError if the environment called `world` has no such level."""
    if not isinstance(level, str) or level not in list(levels):
        name = shown(level)
        raise UserError(f"the {world} has no level {name}{nearest(name.strip(repr('')), levels)}")


def split_of(split: str | None, held_out: bool, world: str) -> str:
    """Which of `SPLITS` the arguments of `dataset_rows` mean: without `split`, unseen if `held_out` and else train.

    Raises:
        UserError: there is no such split, or `held_out` is set beside one.
    """
    if split is None:
        return "unseen" if held_out else "train"
    if not isinstance(split, str) or split not in SPLITS:
        name = shown(split)
        raise UserError(f"the {world} has no split {name}{nearest(name.strip(repr('')), SPLITS)}")
    if held_out:
        raise UserError(f"held_out and split {split!r} both say which rows of the {world}: leave held_out out")
    return split


def draws(seed: int, split: str) -> random.Random:
    """What chooses the rows of a split."""
    return random.Random(f"{seed}/seen" if split == "seen" else seed * 2 + (split == "unseen"))


def turn_limit(max_turns: Any, usual: int, column: str = "max_turns") -> int:
    """The number of turns that a row allows: `usual` where it says None, NaN (an empty cell of a table) or 0.

    Args:
        column: that the number is from, for the message.

    Raises:
        UserError: it is not a whole number >= 1.
    """
    if max_turns is None:
        return usual
    if _is_number(max_turns):
        if max_turns != max_turns or max_turns == 0:
            return usual
        if max_turns >= 1 and max_turns % 1 == 0:
            return int(min(max_turns, MOST_TURNS))
    raise UserError(f"A row's column `{column}` is {shown(max_turns)}; write a whole number of turns >= 1")


def row_number(value: Any, column: str, world: str, most: int = LARGEST) -> int:
    """The whole number from 0 to `most` in a row's column.

    Raises:
        UserError: it is none.
    """
    if _is_number(value) and 0 <= value <= most and value % 1 == 0:
        return int(value)
    bound = ">= 0" if most == LARGEST else f"from 0 to {most}"
    raise UserError(f"{world}: a row's column `{column}` needs a whole number {bound}, not {shown(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)  # numpy's too


def row_text(value: Any, column: str, world: str) -> str:
    """The text in a row's column; a number is one, and None, an empty cell of a table, is an empty one.

    Raises:
        UserError: it is something else.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):  # an integer of more digits than Python writes
            return str(value)
    raise UserError(f"{world}: a row's column `{column}` needs a text, not {shown(value)}")


def prompt_and_budget(
    instruction: str, max_turns: int, usual: int, unit: str = "turn"
) -> tuple[list[dict[str, str]], dict[str, int]]:
    """The prompt of rows of at most `max_turns` turns, and the column that tells `reset` so.

    Args:
        instruction: its placeholder `{turns}` is replaced by words for `max_turns`.
        usual: the number of turns that `reset` takes by default; rows of this number need no column.
        unit: what the world calls a turn.

    Raises:
        UserError: `max_turns` is not a whole number >= 1.
    """
    if type(max_turns) is not int or max_turns < 1:
        raise UserError(f"max_turns is {shown(max_turns)}; write a whole number of turns >= 1")
    turns = f"one {unit}" if max_turns == 1 else f"at most {max_turns} {unit}s"
    prompt = [{"role": "user", "content": instruction.replace("{turns}", turns)}]
    return prompt, {} if max_turns == usual else {"max_turns": max_turns}
