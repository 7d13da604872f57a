"""Word overlap of prediction and observation (Word2World, STB_F1 of its table 1)."""

import re
from collections import Counter

from wm_plugin.rewards.base import TextReward

_WORD = re.compile(r"\w+")


class WordF1Reward(TextReward):
    """F1 over words, with repetitions: 2 · shared / (words of the prediction + words of the observation).

    Words are runs of letters, digits and underscores in lower case; the paper does not define them. Two texts without words
    score 1 if they are equal apart from surrounding white space, else 0.
    """

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        return [word_f1(*pair) for pair in zip(predictions, targets, strict=True)], {}


def word_f1(prediction: str, target: str) -> float:
    """Return the F1 of two texts' words; see `WordF1Reward`."""
    predicted, observed = (Counter(_WORD.findall(text.lower())) for text in (prediction, target))
    if not predicted and not observed:
        return float(prediction.strip() == target.strip())
    return 2 * (predicted & observed).total() / (predicted.total() + observed.total())
