"""How many words a prediction and the observation share (Word2World, STB_F1 of its table 1)."""

import re
from collections import Counter

from wm_plugin.rewards.base import TextReward

_WORD = re.compile(r"\w+")


class WordF1Reward(TextReward):
    """F1 of the words, with repetitions: 2 · shared / (words of the prediction + words of the observation).

    Words are runs of letters, digits and underscores, in lower case; the paper does not say what they are. Two texts without
    words get 1 if they are the same but for surrounding white space, as two empty ones are.

    Args:
        tag: takes predictions out of whole outputs, see `TextReward`.
    """

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        return [word_f1(*pair) for pair in zip(predictions, targets, strict=True)], {}


def word_f1(prediction: str, target: str) -> float:
    said, seen = (Counter(_WORD.findall(text.lower())) for text in (prediction, target))
    if not said and not seen:
        return float(prediction.strip() == target.strip())
    return 2 * (said & seen).total() / (said.total() + seen.total())
