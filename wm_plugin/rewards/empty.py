"""Watches a run for rewards that score nothing: batches without any prediction, or without any answer of the judge.

Both hosts call `EmptyRewardMonitor` after every training batch of rollouts, with figures over all ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from wm_plugin.errors import UserError
from wm_plugin.rewards.hosted import FIGURES

# Figure -> why the reward scored nothing if the figure is 1.
CAUSES = {
    "no_prediction": "no answer had a prediction (does the prompt ask for the tag, and is the length limit high enough?)",
    "no_verifier": "no row had a verifier (is the column called verifier?)",
    "failure_share": "the judge gave no verdict on any prediction (is its server up, and its model up to the prompt?)",
}
_ALL = 1 - 1e-6  # shares are sums of floats


@dataclass
class _Watched:
    empty: int = 0  # batches in a row
    scored: bool = False  # in any batch
    cause: str = ""
    warned: bool = False


class EmptyRewardMonitor:
    """Watches a run for rewards that score nothing, by their figures.

    `batches` such batches in a row cause one warning per reward, or stop the run. A run in which a reward never scored anything
    fails at its end, unless it is shorter than `batches` and only predictions were missing: a model may have to learn the tag.

    Args:
        stop: whether that many batches in a row stop the run (`on_silence: stop`).
        batches: how many (`silent_batches`).
    """

    def __init__(self, *, stop: bool, batches: int) -> None:
        self._stop, self._batches = stop, batches
        self._rewards: dict[str, _Watched] = {}

    def record(self, metrics: Mapping[str, float]) -> str | None:
        """Record a batch by its metrics, `wm/<reward>/<figure>` among them; return a warning if one is due.

        Raises:
            UserError: the run is to stop.
        """
        causes: dict[str, str] = {}
        for name, value in metrics.items():
            label, _, figure = name.removeprefix(FIGURES).partition("/")
            if name.startswith(FIGURES) and figure in CAUSES:
                causes.setdefault(label, "")
                if value >= _ALL:
                    causes[label] = figure
        due = []
        for label, cause in causes.items():
            reward = self._rewards.setdefault(label, _Watched())
            reward.cause = cause
            reward.empty = reward.empty + 1 if cause else 0
            reward.scored |= not cause
            if reward.empty >= self._batches and (self._stop or not reward.warned):
                due.append(self._text(label, f"{reward.empty} batches of rollouts in a row"))
                reward.warned = True
        if due and self._stop:
            raise UserError(f"{'; '.join(due)} (on_silence is stop)")
        return "; ".join(due) or None

    def at_end(self) -> str | None:
        """Return a warning if one is due as the run ends.

        Raises:
            UserError: a reward scored nothing in the whole run.
        """
        never = {label: reward for label, reward in self._rewards.items() if reward.empty and not reward.scored}
        texts = [self._text(label, "any batch of rollouts of the run") for label in never]
        if any(one.empty >= self._batches or one.cause != "no_prediction" for one in never.values()):
            raise UserError("; ".join(texts))
        return "; ".join(texts) or None

    def _text(self, label: str, where: str) -> str:
        return f"reward {label} scored nothing in {where}: {CAUSES[self._rewards[label].cause]}"
