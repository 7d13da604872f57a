"""Exact match of prediction and observation (Word2World's fidelity)."""

from wm_plugin.rewards import json_match
from wm_plugin.rewards.base import TextReward


class ExactReward(TextReward):
    """1 for equal texts, else 0.

    Args:
        strip: ignore surrounding white space.
        ignore_case: ignore case.
        ignore_whitespace: treat every run of white space as one space, and ignore surrounding white space.
        json: compare JSON values as values, so that layout and key order do not matter and 1 equals 1.0. If either text is not
            JSON, compare the texts.
        tag: see `TaggedReward`.
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
        return json_match.NO_JSON not in values and json_match.is_same(*values)

    def _normal(self, text: str) -> str:
        if self.ignore_whitespace:
            text = " ".join(text.split())
        elif self.strip:
            text = text.strip()
        return text.casefold() if self.ignore_case else text
