"""Whether a prediction is the observation, letter by letter (Word2World's fidelity)."""

from wm_plugin.rewards import json_match
from wm_plugin.rewards.base import TextReward


class ExactReward(TextReward):
    """1 for the same text, else 0.

    Args:
        strip: white space around the texts does not count.
        ignore_case: nor does case.
        ignore_whitespace: any run of white space is one space, and around the texts it does not count.
        json: two JSON values are compared as values: the order of keys and the layout do not count, nor does 1 against 1.0. Texts
            of which one is no JSON are compared as texts.
        tag: takes predictions out of whole outputs, see `TextReward`. Extraction strips white space.
    """

    def __init__(
        self,
        *,
        strip: bool = True,
        ignore_case: bool = False,
        ignore_whitespace: bool = False,
        json: bool = False,
        tag: str | None = None,
    ) -> None:
        super().__init__(tag=tag)
        self.strip, self.ignore_case, self.ignore_whitespace, self.json = strip, ignore_case, ignore_whitespace, json

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        return [float(self._same(*pair)) for pair in zip(predictions, targets, strict=True)], {}

    def _same(self, prediction: str, target: str) -> bool:
        prediction, target = self._normal(prediction), self._normal(target)
        if prediction == target or not self.json:
            return prediction == target
        values = json_match.parse(prediction), json_match.parse(target)
        return json_match.NO_JSON not in values and json_match.compare(*values).is_same

    def _normal(self, text: str) -> str:
        if self.ignore_whitespace:
            text = " ".join(text.split())
        elif self.strip:
            text = text.strip()
        return text.casefold() if self.ignore_case else text
