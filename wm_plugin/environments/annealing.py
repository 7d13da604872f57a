"""The turn budget of WMAct, which follows what the policy needs: the fewer turns it has, the more it must foresee.

Every τ iterations (50, 100 or 150 in the paper, which starts at 30 turns):

    L_max = (mean turns + max turns) / 2          over the episodes since the last change

The paper is silent about rounding, window and direction. Here L_max is rounded up, is at least 1, and never rises. An iteration
is a rollout of one batch of prompts, whatever updates follow it; turns are those that episodes took in their environment.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from wm_plugin.errors import UserError, nearest


@dataclass
class TurnBudget:
    """The budget of the next rollout, `turns`, and what has been seen since it changed last.

    Args:
        start: turns that an episode may take at first.
        every: τ, in iterations.

    Raises:
        UserError: one of them is no whole number >= 1.
    """

    start: int = 30
    every: int = 100
    turns: int = field(init=False)
    iterations: int = field(default=0, init=False)  # since the last change, as all that follows
    episodes: int = field(default=0, init=False)
    total: float = field(default=0.0, init=False)
    longest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        for name in ("start", "every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise UserError(f"turn_budget.{name} is {value!r}; write a whole number >= 1")
        self.turns = self.start

    @classmethod
    def from_mapping(cls, values: Any) -> "TurnBudget":
        """The budget that a config describes: `{start: 30, every: 100}`.

        Raises:
            UserError: it is no mapping, has another key, or a value does not fit.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"turn_budget is {values!r}; write a mapping, e.g. {{start: 30, every: 100}}")
        for key in values:
            if key not in ("start", "every"):
                raise UserError(f"turn_budget has no field {key!r}{nearest(str(key), ('start', 'every'))}")
        return cls(**values)

    def end_iteration(self, turns: Iterable[float]) -> bool:
        """Take what a rollout's episodes took, and say whether the budget was decided on anew (it may be the same).

        Args:
            turns: of each episode, over all ranks and workers.
        """
        seen = list(turns)
        self.iterations += 1
        self.episodes += len(seen)
        self.total += math.fsum(seen)
        self.longest = max([self.longest, *seen])
        if self.iterations < self.every:
            return False
        if self.episodes:
            wanted = math.ceil((self.total / self.episodes + self.longest) / 2)
            self.turns = max(1, min(self.turns, wanted))
        self.iterations = self.episodes = 0
        self.total = self.longest = 0.0
        return True

    def take(self, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """End an iteration with its episodes (of `metrics.episode`); the budget that they had, as a figure for the log."""
        figure = {"wm/turn_budget": float(self.turns)}
        self.end_iteration([one["turns"] for one in episodes if "turns" in one])
        return figure

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON, for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on where `state` was left; False, and nothing happens, if it is of other settings, which the user asked for."""
        if (state.get("start"), state.get("every")) != (self.start, self.every):
            return False
        for one in fields(self):
            setattr(self, one.name, state[one.name])
        return True
