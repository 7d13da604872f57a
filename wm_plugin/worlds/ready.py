"""What a world can be used for: training, held-out evaluation, checks before irreversible actions, consistency."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from wm_plugin.errors import UserError
from wm_plugin.worlds.worlds import World
from wm_plugin.worlds.wrappers.verified import verified

_ROWS = "dataset_rows(count, seed, held_out) beside the class, or a parameter seed of reset (else all episodes are the same)"
_SUCCESS = "success, a bool: whether the episode is won"
_OVER = "over, a bool: whether the episode has ended"


@dataclass(frozen=True)
class Use:
    """A use of a world: the attributes and functions that it still needs (none: it is ready), and where it is described."""

    name: str
    add: tuple[str, ...]
    docs: str


def uses(world: World, failed: Sequence[str]) -> list[Use]:
    """Return what each use of the world needs.

    Args:
        failed: names of the findings that fail: no use is ready before they are mended.
    """
    environment = world.environment
    takes_seed = "seed" in inspect.signature(environment.reset).parameters  # type: ignore[attr-defined]
    rows = () if world.spec.dataset_rows or takes_seed else (_ROWS,)
    instance = world.make()
    success, over = (
        () if hasattr(instance, name) else (what,) for name, what in (("success", _SUCCESS), ("over", _OVER))
    )
    rewarded = hasattr(environment, "get_reward")
    reward = () if rewarded else ("get_reward(self) -> float, or a reward of the trainer's (docs/rewards.md)",)
    mend = (f"what fails: {', '.join(failed)}",) if failed else ()
    return [
        Use("training", (*mend, *rows, *reward), "docs/worlds.md#in-a-trainer"),
        Use("held-out evaluation", (*mend, *rows, *success), "docs/evaluation.md"),
        Use("verifier", (*mend, *_unverifiable(environment)), "docs/word2world.md#checks-before-irreversible-actions"),
        Use("consistency", (*mend, *rows, *success, *over), "docs/word2world.md#consistency"),
    ]


def _unverifiable(environment: type) -> tuple[str, ...]:
    """Say why no action could be checked."""
    if not getattr(environment, "irreversible", ()):
        return ('irreversible = ("TOOL",) on the class, or tools, pattern or when of verify',)
    try:
        verified(environment, {"budget": 1, "control": "refuse"})
    except UserError as error:
        return (str(error),)
    return ()
