"""ROUGE (Lin 2004), which RWML compares tools' results by (§C.1): close to their keys and values, in order.

The F-measure of the package `rouge_score` without stemming, to the last bit, and with rapidfuzz's bit-parallel longest common
subsequence many times faster.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Literal, get_args

from rapidfuzz.distance import LCSseq

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.base import TextReward

Variant = Literal["rougeL", "rouge1", "rouge2"]
_SPACED = bytes(code if code in b"abcdefghijklmnopqrstuvwxyz0123456789" else 32 for code in range(256))


class RougeReward(TextReward):
    """2PR/(P+R) over the tokens that both texts have: in the same order (rougeL), anywhere (rouge1), or as pairs (rouge2).

    Tokens are runs of a-z and 0-9 in lower case. So it is in the original, and so a text without any, such as an empty one or one
    in Chinese, gets 0 even for itself: the figure `no_tokens` is the share of predictions whose target is of that kind.

    Args:
        variant: rougeL, rouge1 or rouge2.
        step: round to the nearest multiple of it, RWML with 0.2, for a steadier training. A tie goes up: 0.5 becomes 0.6. Ties
            are decided on the exact fraction, not on a float beside it. 1 must be a multiple of it.
        tag: takes predictions out of whole outputs, see `TextReward`.
    """

    def __init__(self, variant: Variant = "rougeL", step: float | None = None, *, tag: str | None = None) -> None:
        super().__init__(tag=tag)
        if variant not in get_args(Variant):
            raise UserError(f"variant is {variant!r}{nearest(str(variant), get_args(Variant))}")
        if step is not None and not (0 < step <= 1 and abs(round(1 / step) * step - 1) < 1e-9):
            raise UserError(
                f"step is {step!r}; write a part of 1 that 1 is a multiple of, such as 0.2, or leave it out"
            )
        self.variant, self.step = variant, step
        self._steps = None if step is None else round(1 / step)

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        scores = []
        without = 0
        before, seen, spoken = "", self._grams(""), False
        for prediction, target in zip(predictions, targets, strict=True):
            if target != before:  # a group's predictions, which come one after the other, have one target
                before, seen = target, self._grams(target)
                spoken = bool(seen or tokens(target))
            without += not spoken
            said = self._grams(prediction)
            scores.append(_f_measure(LCSseq.similarity(said, seen), len(said), len(seen), self._steps))
        return scores, {"no_tokens": without / len(targets) if targets else 0.0}

    def _grams(self, text: str) -> Sequence[Hashable]:
        """What is counted of a text. Of two sorted sequences, the longest common one is all that both have."""
        words = tokens(text)
        if self.variant == "rouge1":
            return sorted(words)
        if self.variant == "rouge2":
            return sorted(map(hash, pairwise(words)))  # rapidfuzz compares hashes, too
        return words


def tokens(text: str) -> list[str]:
    """`[a-z0-9]+` in lower case, several times faster than by a regular expression: all other characters become spaces."""
    return text.lower().encode("ascii", "replace").translate(_SPACED).decode().split()


def _f_measure(both: int, said: int, seen: int, steps: int | None) -> float:
    """2PR/(P+R), which is 2·both/(said+seen); rounded to the nearest of k/steps, ties up, in integers."""
    if not both:
        return 0.0
    if steps is not None:
        total = said + seen
        return (4 * both * steps + total) // (2 * total) / steps
    precision, recall = both / said, both / seen
    return 2 * precision * recall / (precision + recall)
