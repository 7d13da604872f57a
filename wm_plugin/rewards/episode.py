"""Rewards of whole episodes: the outcome, and how the agent reached it (WMAct).

    R = R_outcome · N_effective / N − format penalty − turn penalty · T − action penalty · N       WMAct, equation 4
    R_t = γ^(T−1−t) · R                                                            the terminal reward, at turn t

An episode has N actions and T turns; an action is effective if it changes the state. The paper's step penalty, a row of its
ablation, is the turn penalty here. Choices that the paper leaves open are marked where they are made.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import PrivateAttr

from wm_plugin.errors import UserError, shown
from wm_plugin.options import Number, Options, option

_AMOUNT = "the amount to subtract, a number >= 0"


def rescale_by_effective_actions(
    outcomes: Sequence[float], effective: Sequence[int], actions: Sequence[int]
) -> list[float]:
    """Multiply each outcome by the share of effective actions (WMAct, equation 4); an episode without actions gets 0.

    Args:
        outcomes: one per episode.
        effective: number of actions that changed the state, per episode.
        actions: number of all actions per episode, including no-ops and invalid ones.

    Raises:
        UserError: the lengths differ, or an episode has more effective actions than actions.
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
    """Return the discounted terminal reward of each turn of each episode, γ^(T−1−t) · R. With γ = 1 every turn gets all of R.

    Args:
        rewards: one per episode.
        turns: T of each episode; 0 gives an empty list.
        gamma: γ, in [0, 1].
    """
    _same_length(rewards=rewards, turns=turns)
    if not 0 <= gamma <= 1:
        raise UserError(f"gamma is {shown(gamma)}; write a number between 0 and 1")
    return [
        [reward * gamma ** (count - 1 - turn) for turn in range(count)]
        for reward, count in zip(rewards, turns, strict=True)
    ]


class EpisodeReward(Options):
    """An episode's reward from its outcome and its counts.

    Attributes:
        figures: of the last call: the mean `outcome`, the `effective_share` of the actions, and `invalid_episodes`, the share of
            episodes with an invalid action.
    """

    rescale: bool = option("Multiply the outcome by the share of effective actions.", default=True)
    # The paper calls it small without a number. Once, because a penalty for each action would outweigh a long episode's outcome.
    format_penalty: Number = option(
        "Subtracted once from an episode with an invalid action.", default=0.1, write=_AMOUNT, ge=0
    )
    turn_penalty: Number = option(
        "Subtracted for each turn. The paper's ablation has 0.1.", default=0.0, write=_AMOUNT, ge=0
    )
    action_penalty: Number = option(
        "Subtracted for each action; not in the paper. 0.1 is more than a solution of ten actions can earn.",
        default=0.0,
        write=_AMOUNT,
        ge=0,
    )
    gamma: Number = option(
        "An episode of T turns gets gamma^(T-1) of its reward, the value of `discounted` at its first turn. Discounting by the "
        "algorithm itself, such as GAE's per token, comes on top.",
        default=1.0,
        write="a number between 0 and 1",
        ge=0,
        le=1,
    )
    _figures: dict[str, float] = PrivateAttr(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        return self._figures

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
        """Return one reward per episode.

        Args:
            outcomes, actions, effective: as in `rescale_by_effective_actions`.
            invalid: number of actions that the world refused, per episode; None means none.
            turns: T of each episode, needed for a turn penalty and if γ < 1. An episode without turns is not discounted.

        Raises:
            UserError: the lengths differ, the counts contradict each other, or `turns` is missing and needed.
        """
        invalid = [0] * len(outcomes) if invalid is None else invalid
        if turns is None and (self.gamma < 1 or self.turn_penalty):
            reason = "gamma is below 1" if self.gamma < 1 else "turn_penalty is set"
            raise UserError(f"{reason}, but the column of turns is missing")
        turns = [1] * len(outcomes) if turns is None else turns  # unused then
        _same_length(outcomes=outcomes, actions=actions, effective=effective, invalid=invalid, turns=turns)
        rescaled = rescale_by_effective_actions(outcomes, effective, actions)
        rewards = [
            (scaled if self.rescale else outcome)
            - (self.format_penalty if wrong else 0.0)
            - self.turn_penalty * length
            - self.action_penalty * total
            for scaled, outcome, wrong, length, total in zip(rescaled, outcomes, invalid, turns, actions, strict=True)
        ]
        count = max(len(outcomes), 1)
        self._figures = {
            "outcome": sum(outcomes) / count,
            "effective_share": sum(effective) / max(sum(actions), 1),
            "invalid_episodes": sum(bool(wrong) for wrong in invalid) / count,
        }
        return [reward * self.gamma ** max(length - 1, 0) for reward, length in zip(rewards, turns, strict=True)]


def _same_length(**columns: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"the columns differ in length: {', '.join(f'{name} {n}' for name, n in lengths.items())}")
