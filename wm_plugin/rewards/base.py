"""What the rewards of predicted observations share: where a prediction comes from, and what counts as none.

There is no prediction where the input is None, where `extract` finds none in a model's output, or where it is far longer than
what was observed. Such a row gets the reward's
lowest score and is neither scored nor shown to a judge. An empty text is a prediction: the model says that nothing will be
observed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import check_tag, extract

_LONGEST, _TIMES = 100_000, 4  # characters of a prediction: this, and so many times those of the observation


class TaggedReward(ABC):
    """Base of every reward of predictions: it can take them out of a model's whole outputs.

    Args:
        tag: the tag around the prediction. The inputs are then whole outputs, and the prediction is what `extract` finds in
            them: the text in this tag or, if `tag` is empty, the text after the reasoning. None: the inputs are the
            predictions themselves. Trainers hand over whole outputs, so a trainer's config needs a tag.

    Attributes:
        figures: metrics of the last call.
    """

    def __init__(self, *, tag: str | None = None) -> None:
        check_tag(tag)
        self.tag = tag
        self.figures: dict[str, float] = {}

    @abstractmethod
    def __call__(self, *texts: Any, **columns: Any) -> list[float]:
        """One score per row, in order, of `predictions` and `targets`."""

    def extracted(self, outputs: Sequence[str | None], targets: Sequence[str]) -> list[str | None]:
        """The prediction in each output, None where there is none. Every reward reads its inputs here and nowhere else.

        Args:
            outputs: whole outputs with a tag, predictions without one; None where there is none.
            targets: the real observations. What is far longer than these (100,000 characters and four times their length) is
                no prediction: everything that follows takes time and memory by the length of what was observed.

        Raises:
            UserError: the lengths differ, or an item is not a text.
        """
        check_texts(outputs, targets)
        texts = outputs
        if self.tag is not None:
            texts = [None if output is None else extract(output, self.tag).prediction for output in outputs]
        return [
            None if text is None or len(text) > _LONGEST + _TIMES * len(target) else text
            for text, target in zip(texts, targets, strict=True)
        ]


class TextReward(TaggedReward):
    """A reward that compares two texts by arithmetic: a score from 0 to 1 for each prediction, 0 where there is none.

    Args:
        tag: see `TaggedReward`.

    Attributes:
        figures: metrics of the last call; always with `no_prediction`, the share of rows without a prediction.
    """

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **_columns: Any) -> list[float]:
        """One score per row, in order.

        Args:
            predictions: predictions, or whole outputs if the reward has a tag; None where there is none.
            targets: the real observations.

        Raises:
            UserError: the lengths differ, or an item is not a text.
        """
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
        """Scores of the predictions that exist, and this reward's own figures."""


def check_texts(predictions: Sequence[str | None], targets: Sequence[str]) -> None:
    """Check that there is one target per prediction and that all are texts (a prediction may be None).

    Raises:
        UserError: they are not.
    """
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
    """Check that a column has one value per row.

    Raises:
        UserError: it has not.
    """
    if len(values) != len(targets):
        raise UserError(f"there are {len(targets)} targets and {len(values)} values of {name}; write one for each")


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0
