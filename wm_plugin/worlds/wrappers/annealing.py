"""The turn budget of WMAct, which shrinks to what the policy needs: with fewer turns it must foresee more.

Every τ iterations (50, 100 or 150 in the paper, which starts at 30 turns):

    L_max = (mean turns + max turns) / 2          over the episodes since the last change

The paper says nothing about rounding, window and direction. Here L_max is rounded up, is at least 1 and never rises. An iteration
is a rollout of one batch of prompts, whatever updates follow it; turns are those that episodes took in their environment.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from wm_plugin.options import Options, Whole, option


class TurnBudgetConfig(Options):
    """Settings of `TurnBudget`."""

    example = "{start: 30, every: 100}"

    start: Whole = option("The first budget, in turns.", default=30, ge=1)
    every: Whole = option("The iterations between changes (the paper's τ).", default=100, ge=1)


@dataclass
class TurnBudget:
    """The budget of the next rollout, `turns`, and the episodes since its last change.

    Args:
        start: the first budget, in turns.
        every: τ, in iterations.

    Raises:
        UserError: one of them is no whole number >= 1.
    """

    start: int = 30
    every: int = 100
    turns: int = field(init=False)
    iterations: int = field(default=0, init=False)  # since the last change, like the fields below
    episodes: int = field(default=0, init=False)
    total: float = field(default=0.0, init=False)
    longest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        TurnBudgetConfig.read({"start": self.start, "every": self.every}, "turn_budget")
        self.turns = self.start

    @classmethod
    def read(cls, values: Any, where: str = "turn_budget") -> Self:
        """The budget that a config describes: `{start: 30, every: 100}`.

        Raises:
            UserError: it is no mapping, has another key, or a value does not fit.
        """
        settings = TurnBudgetConfig.read(values, where)
        return cls(settings.start, settings.every)

    def end_iteration(self, turns: Iterable[float]) -> bool:
        """Count the turns of a rollout. True if the budget was decided anew (its value may be the same).

        Args:
            turns: of each episode, over all ranks and workers.
        """
        turns = list(turns)
        self.iterations += 1
        self.episodes += len(turns)
        self.total += math.fsum(turns)
        self.longest = max([self.longest, *turns])
        if self.iterations < self.every:
            return False
        if self.episodes:
            budget = math.ceil((self.total / self.episodes + self.longest) / 2)
            self.turns = max(1, min(self.turns, budget))
        self.iterations = self.episodes = 0
        self.total = self.longest = 0.0
        return True

    def take(self, episodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """End an iteration with the figures of its episodes (`metrics.episode`). Returns their budget, for the log."""
        log = {"wm/turn_budget": float(self.turns)}
        self.end_iteration([figures["turns"] for figures in episodes if "turns" in figures])
        return log

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values, for a checkpoint."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Take over the state of a checkpoint.

        Returns:
            False, and nothing changes, if the checkpoint has other settings than this object: the user has changed them.
        """
        if (state.get("start"), state.get("every")) != (self.start, self.every):
            return False
        for name in asdict(self):
            setattr(self, name, state[name])
        return True
