"""For an environment's rows: check a level and a number of turns, and write the number of turns into a prompt."""

from collections.abc import Iterable
from typing import Any

from wm_plugin.errors import UserError, nearest


def check_level(level: str, levels: Iterable[str], world: str) -> None:
    """Raise a UserError if the environment called `world` has no such level."""
    if level not in list(levels):
        name = shown(level)
        raise UserError(f"the {world} has no level {name}{nearest(name.strip(repr('')), levels)}")


def turn_limit(max_turns: Any, usual: int) -> int:
    """The number of turns that a row allows: `usual` where it says None, NaN (an empty cell of a table) or 0.

    Raises:
        UserError: it is not a whole number >= 1.
    """
    if max_turns is None or max_turns != max_turns or (max_turns == 0 and max_turns is not False):
        return usual
    if isinstance(max_turns, bool) or not isinstance(max_turns, int | float) or max_turns < 1 or max_turns % 1:
        raise UserError(f"A row's column `max_turns` is {shown(max_turns)}; write a whole number of turns >= 1")
    return int(max_turns)


def shown(value: Any) -> str:
    """A value of a row as a message shows it: one line, cut."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = type(value).__name__
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 40 else f"{text[:40]}..."


def prompt_and_budget(instruction: str, max_turns: int, usual: int) -> tuple[list[dict[str, str]], dict[str, int]]:
    """The prompt of rows of at most `max_turns` turns, and the column that tells `reset` so.

    Args:
        instruction: its placeholder `{turns}` is replaced by words for `max_turns`.
        usual: the number of turns that `reset` takes by default; rows of this number need no column.

    Raises:
        UserError: `max_turns` is not a whole number >= 1.
    """
    if type(max_turns) is not int or max_turns < 1:
        raise UserError(f"max_turns is {max_turns!r}; write a whole number of turns >= 1")
    turns = "one turn" if max_turns == 1 else f"at most {max_turns} turns"
    prompt = [{"role": "user", "content": instruction.replace("{turns}", turns)}]
    return prompt, {} if max_turns == usual else {"max_turns": max_turns}
