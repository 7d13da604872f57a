"""What all rewards of a predicted text have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import check_tag, extract


class TextReward(ABC):
    """How good predictions of observations are, each from 0 to 1. No prediction is worth 0.

    Args:
        tag: predictions are a model's whole outputs, and the prediction is what `extract` finds in them: in this tag or, if it
            is empty, after the reasoning. None: predictions are given as they are. A trainer's config needs a tag, because hosts
            hand over whole outputs.

    Attributes:
        figures: of the last call, for metrics. All have `no_prediction`, the share of rows without one.
    """

    def __init__(self, *, tag: str | None = None) -> None:
        check_tag(tag)
        self.tag = tag
        self.figures: dict[str, float] = {}

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **_columns: Any) -> list[float]:
        """A score for each prediction, in order.

        Args:
            predictions: None where there is none.
            targets: what was really observed.

        Raises:
            UserError: the lengths differ, or something is no text.
        """
        check_texts(predictions, targets)
        found = {row: text for row, text in enumerate(self.extracted(predictions)) if text is not None}
        given, figures = self.score(list(found.values()), [targets[row] for row in found])
        scores = [0.0] * len(targets)
        for row, score in zip(found, given, strict=True):
            scores[row] = score
        self.figures = {"no_prediction": 1 - len(found) / len(targets) if targets else 0.0, **figures}
        return scores

    @abstractmethod
    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        """A score for each of the predictions that there are, and figures of this reward's own."""

    def extracted(self, outputs: Sequence[str | None]) -> list[str | None]:
        if self.tag is None:
            return list(outputs)
        return [None if output is None else extract(output, self.tag).prediction for output in outputs]


def check_texts(predictions: Sequence[str | None], targets: Sequence[str]) -> None:
    """Raises UserError if these are not a text, or None, and a text for each row."""
    for name, texts in (("predictions", predictions), ("targets", targets)):
        if isinstance(texts, str):
            raise UserError(f"{name} is a text; write a list of texts")
    if len(predictions) != len(targets):
        raise UserError(
            f"there are {len(predictions)} predictions and {len(targets)} targets; write one target for each"
        )
    for row, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
        if prediction is not None and not isinstance(prediction, str):
            raise UserError(f"prediction {row} is of type {type(prediction).__name__}; write a text, or None for none")
        if not isinstance(target, str):
            raise UserError(f"target {row} is of type {type(target).__name__}; write the text that was observed")


def mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return sum(values) / len(values) if values else 0.0
