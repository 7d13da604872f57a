"""`wm data expand`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from wm_plugin.cli.numbers import Share
from wm_plugin.cli.support import progress, token_counter
from wm_plugin.data import transitions
from wm_plugin.data.outputs import check_apart, check_derived, check_out
from wm_plugin.data.readers import read
from wm_plugin.data.write import holds_lines, write_transitions
from wm_plugin.errors import UserError


def expand(
    source: str,
    /,
    *,
    out: Path,
    turns: Literal["all", "one", "bench"] = "all",
    history: int | None = None,
    history_tokens: int | None = None,
    tokenizer: str | None = None,
    repeat_history: bool = False,
    seed: int = 0,
    validation_share: Share = 0.0,
) -> dict[str, Any]:
    """Expand trajectories to transitions: history, action and next observation.

    As JSON: `transitions` and `validation`, how many went to each file.

    Args:
        source: Trajectories, or any format that convert reads.
        out: X.jsonl.
        turns: all; one a trajectory at random; or bench, half of the first, the last and three more.
        history: Turns before the action to keep (default: all).
        history_tokens: Or the last turns that fit whole into so many tokens.
        tokenizer: The tokenizer that counts --history-tokens.
        repeat_history: Write a line for each transition, with its whole history, for other programs: the file is several times
            as large.
        seed: Seed of the draws.
        validation_share: Write this share of the tasks to X.validation.jsonl.
    """
    if history is not None and history_tokens is not None:
        raise UserError("--history counts turns and --history-tokens tokens: leave one of them out")
    if (history_tokens is None) is not (tokenizer is None):
        raise UserError("--history-tokens TOKENS and --tokenizer PATH go together: give both or none")
    held_out = out.with_name(f"{out.stem}.validation{out.suffix}")

    def check_held_out() -> None:
        check_derived(held_out, holds_lines, "transitions", "name another file with --out")

    check_out(out, (".jsonl",))
    if validation_share:
        check_held_out()
    check_apart([source, tokenizer], {"--out": out} | ({"--validation-share": held_out} if validation_share else {}))
    count = token_counter(tokenizer)

    def write(validation: bool, path: Path, check: Callable[[], object] = lambda: None) -> int:
        side = (one for one in read(source) if transitions.is_validation(one, validation_share, seed) is validation)
        made = transitions.expand(
            progress(side, "trajectories"),
            turns=turns,
            history=history,
            history_tokens=history_tokens,
            count=count,
            seed=seed,
        )
        return write_transitions(made, path, [source], repeat_history=repeat_history, check=check)

    result: dict[str, Any] = {"transitions": write(False, out), "out": str(out)}
    if validation_share:
        result |= {"validation": write(True, held_out, check_held_out), "validation_out": str(held_out)}
    return result
