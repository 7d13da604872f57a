"""Base classes of the rewards that score predicted observations.

A row has no prediction if its input is None, if `extract` finds none in the output, or if the text is far longer than the
observation. Such a row gets the lowest score and is neither scored nor shown to a judge. An empty text is a prediction: the
model says that nothing will be observed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.rewards.extract import check_tag, extract

# A prediction may have this many characters, plus this many times those of the observation.
_MAX_CHARS, _MAX_RATIO = 100_000, 4


class TaggedReward(ABC):
    """Base of every reward of predictions, which it can take out of a model's whole outputs.

    Args:
        tag: the tag around the prediction, if the inputs are whole outputs (trainers pass these); empty: the prediction is the
            text after the reasoning. None: the inputs are the predictions themselves.

    Attributes:
        figures: metrics of the last call.
    """

    def __init__(self, *, tag: str | None = None) -> None:
        check_tag(tag)
        self.tag = tag
        self.figures: dict[str, float] = {}

    @abstractmethod
    def __call__(self, *texts: Any, **columns: Any) -> list[float]:
        """Score each row of `predictions` and `targets`, in order."""

    def extracted(self, outputs: Sequence[str | None], targets: Sequence[str]) -> list[str | None]:
        """Return each output's prediction, None where there is none. Every reward reads its inputs here and nowhere else.

        A text longer than 100,000 characters plus four times its target is no prediction, so that the observation bounds the
        time and memory of everything that follows.

        Raises:
            UserError: the lengths differ, or an item is not a text.
        """
        check_texts(outputs, targets)
        texts = outputs
        if self.tag is not None:
            texts = [None if output is None else extract(output, self.tag).prediction for output in outputs]
        return [
            None if text is None or len(text) > _MAX_CHARS + _MAX_RATIO * len(target) else text
            for text, target in zip(texts, targets, strict=True)
        ]


class TextReward(TaggedReward):
    """A reward that compares two texts by arithmetic and scores from 0 to 1; 0 without a prediction.

    Attributes:
        figures: metrics of the last call; always with `no_prediction`, the share of rows without a prediction.
    """

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **_columns: Any) -> list[float]:
        texts = self.extracted(predictions, targets)
        rows = [row for row, text in enumerate(texts) if text is not None]
        values, figures = self.score([text for text in texts if text is not None], [targets[row] for row in rows])
        scores = [0.0] * len(targets)
        for row, value in zip(rows, values, strict=True):
            scores[row] = value
        self.figures = {"no_prediction": 1 - len(rows) / len(targets) if targets else 0.0, **figures}
        return scores

    @abstractmethod
    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        """Score existing predictions; return the scores and this reward's own figures."""


def check_texts(predictions: Sequence[str | None], targets: Sequence[str]) -> None:
    """Raise a UserError unless there is one target per prediction and all are texts (a prediction may be None)."""
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


def check_column(name: str, values: Sequence[Any], targets: Sequence[str]) -> None:
    """Raise a UserError unless a column has one value per row."""
    if len(values) != len(targets):
        raise UserError(f"there are {len(targets)} targets and {len(values)} values of {name}; write one for each")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise a UserError unless a setting has one of these values."""
    if value not in choices:
        raise UserError(f"{name} is {shown(value)}{nearest(value, choices)}")


def check_least(least: int, **sizes: int | None) -> None:
    """Raise a UserError if a setting is below `least`; None is not."""
    for name, size in sizes.items():
        if size is not None and size < least:
            raise UserError(f"{name} is {size}; write a number >= {least}")


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0
