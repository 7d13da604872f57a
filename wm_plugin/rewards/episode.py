"""Rewards of whole episodes: what became of it, and how it was reached (WMAct).

    R = R_outcome · N_effective / N − format penalty − step penalty · N            WMAct, equation 4, and its ablation
    R_t = γ^(T−1−t) · R                                                            the terminal reward, given to turn t

N is the number of actions of an episode; an action is effective when it changes the state. Where the paper is silent, the choice
is ours and said so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wm_plugin.errors import UserError


def rescale_by_effective_actions(
    outcomes: Sequence[float], effective: Sequence[int], actions: Sequence[int]
) -> list[float]:
    """The outcome times the share of effective actions (WMAct, equation 4); an episode without actions gets 0.

    Args:
        outcomes: one an episode.
        effective: actions that changed the state, of each episode.
        actions: all actions of each episode, no-ops and invalid ones included.

    Raises:
        UserError: the lengths differ, or more actions were effective than there were.
    """
    _same_length(outcomes=outcomes, effective=effective, actions=actions)
    for row, (changed, total) in enumerate(zip(effective, actions, strict=True)):
        if not 0 <= changed <= total:
            raise UserError(f"episode {row} has {changed} effective actions of {total}; count every action once")
    return [
        outcome * (changed / total) if total else 0.0
        for outcome, changed, total in zip(outcomes, effective, actions, strict=True)
    ]


def discounted(rewards: Sequence[float], turns: Sequence[int], gamma: float = 1.0) -> list[list[float]]:
    """The terminal reward of each episode, given to each of its turns: γ^(T−1−t) · R. With γ = 1 every turn gets all of it.

    Args:
        rewards: one an episode.
        turns: T of each episode; 0 gives an empty list.

    Raises:
        UserError: the lengths differ, or γ is not in [0, 1].
    """
    _same_length(rewards=rewards, turns=turns)
    _check_gamma(gamma)
    return [
        [reward * gamma ** (count - 1 - turn) for turn in range(count)]
        for reward, count in zip(rewards, turns, strict=True)
    ]


@dataclass
class EpisodeReward:
    """The reward of an episode from its outcome and its counts.

    Args:
        rescale: multiply the outcome by the share of effective actions.
        format_penalty: taken once from an episode with an invalid action. The paper calls it small and gives no size; once,
            because a penalty an action would outweigh the outcome of a long episode.
        step_penalty: taken for each action: the paper's ablation, with 0.1.
        gamma: the reward of an episode of T turns is γ^(T−1) · R, what `discounted` gives to its first turn; 1 in the paper. What
            an algorithm discounts by itself, GAE by tokens, comes on top.

    Attributes:
        figures: of the last call: mean outcome, effective share, share of episodes with an invalid action.
    """

    rescale: bool = True
    format_penalty: float = 0.1
    step_penalty: float = 0.0
    gamma: float = 1.0
    figures: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for name in ("format_penalty", "step_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise UserError(f"{name} is {value!r}; write what is taken away, a number >= 0")
        if type(self.rescale) is not bool:
            raise UserError(f"rescale is {self.rescale!r}; write true or false")
        _check_gamma(self.gamma)

    def __call__(
        self,
        outcomes: Sequence[float],
        *,
        actions: Sequence[int],
        effective: Sequence[int],
        invalid: Sequence[int] | None = None,
        turns: Sequence[int] | None = None,
        **_columns: Any,
    ) -> list[float]:
        """One reward an episode.

        Args:
            invalid: actions that the world did not take, of each episode; None: none.
            turns: T of each episode, for γ; an episode without turns is not discounted.

        Raises:
            UserError: the lengths differ, the counts do not fit, or γ < 1 and there are no turns.
        """
        invalid = [0] * len(outcomes) if invalid is None else invalid
        if turns is None and self.gamma < 1:
            raise UserError("gamma is below 1, and the turns of the episodes are not known")
        turns = [1] * len(outcomes) if turns is None else turns
        _same_length(outcomes=outcomes, actions=actions, effective=effective, invalid=invalid, turns=turns)
        rescaled = rescale_by_effective_actions(outcomes, effective, actions)
        rewards = [
            (scaled if self.rescale else outcome) - (self.format_penalty if wrong else 0.0) - self.step_penalty * total
            for scaled, outcome, wrong, total in zip(rescaled, outcomes, invalid, actions, strict=True)
        ]
        first = [reward * self.gamma ** max(count - 1, 0) for reward, count in zip(rewards, turns, strict=True)]
        count = max(len(outcomes), 1)
        self.figures = {
            "outcome": sum(outcomes) / count,
            "effective_share": sum(effective) / max(sum(actions), 1),
            "invalid_episodes": sum(bool(wrong) for wrong in invalid) / count,
        }
        return first


def _check_gamma(gamma: Any) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise UserError(f"gamma is {gamma!r}; write a number between 0 and 1")


def _same_length(**columns: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"the columns differ in length: {', '.join(f'{name} {n}' for name, n in lengths.items())}")
