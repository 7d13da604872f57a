"""For the `dataset_rows` of an environment: check a level, and write the number of turns into a prompt."""

from collections.abc import Iterable

from wm_plugin.errors import UserError, nearest


def check_level(level: str, levels: Iterable[str], world: str) -> None:
    """Raise a UserError if the environment called `world` has no such level."""
    if level not in list(levels):
        raise UserError(f"the {world} has no level {level!r}{nearest(str(level), levels)}")


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
