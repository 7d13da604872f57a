"""What the `dataset_rows` of several worlds need: the check of a level, and a prompt that names the number of turns."""

from collections.abc import Iterable

from wm_plugin.errors import UserError, nearest


def check_level(level: str, levels: Iterable[str], world: str) -> None:
    """Raises UserError where a world has no such level."""
    if level not in list(levels):
        raise UserError(f"the {world} has no level {level!r}{nearest(str(level), levels)}")


def prompt_and_budget(instruction: str, max_turns: int, usual: int) -> tuple[list[dict[str, str]], dict[str, int]]:
    """The prompt of rows with `max_turns` turns, which stand at `{turns}`, and the column for `reset` of another number."""
    if type(max_turns) is not int or max_turns < 1:
        raise UserError(f"max_turns is {max_turns!r}; write a whole number of turns >= 1")
    turns = "one turn" if max_turns == 1 else f"at most {max_turns} turns"
    prompt = [{"role": "user", "content": instruction.replace("{turns}", turns)}]
    return prompt, {} if max_turns == usual else {"max_turns": max_turns}
