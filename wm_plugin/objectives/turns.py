"""Scores of single turns as advantages of the tokens that the policy sampled in them, for both hosts.

    A_t = coeff · (s_k − mean of s over the scored turns of the group)            for the tokens t of turn k
    A_t = 0                                                                       for all others, those of turns without a score

Nothing is divided by a standard deviation: where all scores of a group are equal there is no advantage, and the coefficient is in
units of the scores.
"""

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

Scores = Sequence[float | None]  # of a completion's turns, in order; None: the turn is not scored


def turn_advantages(scores: Sequence[Scores], groups: Sequence[Hashable], coeff: float) -> list[list[float]]:
    """Return an advantage for each turn of each completion.

    Args:
        scores: of all completions of the groups, those of other ranks included.
        groups: each completion's group.
    """
    of_group: dict[Hashable, list[float]] = {}
    for group, row in zip(groups, scores, strict=True):
        of_group.setdefault(group, []).extend(score for score in row if score is not None)
    means = {group: math.fsum(values) / len(values) for group, values in of_group.items() if values}
    return [
        [0.0 if score is None else coeff * (score - means[group]) for score in row]
        for group, row in zip(groups, scores, strict=True)
    ]


def on_tokens(values: Sequence[Sequence[float]], sampled: Tensor) -> Tensor:
    """Spread a value of each turn over the turn's tokens: the k-th run of sampled tokens is the k-th turn.

    Args:
        values: of each completion's turns. A completion without a sampled token, as the host masks some, has none on its tokens.
        sampled: (B, T), 1 = the policy sampled the token; 0 = the environment's, or padding.

    Returns:
        (B, T), float32; 0 outside of turns.

    Raises:
        ValueError: a completion has more runs than turns, or fewer while a turn without one has a value.
    """
    here = sampled != 0
    before = torch.nn.functional.pad(here[:, :-1], (1, 0))
    turn = (here & ~before).cumsum(dim=1)  # from 1 on
    found = torch.zeros(here.shape, dtype=torch.float32, device=sampled.device)
    runs = turn[:, -1].tolist() if here.size(1) else [0] * here.size(0)
    for row, (own, count) in enumerate(zip(values, runs, strict=True)):
        if not count:
            continue
        if count > len(own) or any(own[count:]):
            raise ValueError(f"completion {row} has {count} runs of sampled tokens, and {len(own)} turns")
        table = torch.tensor([0.0, *own[:count]], dtype=torch.float32, device=sampled.device)
        found[row] = torch.where(here[row], table[turn[row]], table[0])
    return found
