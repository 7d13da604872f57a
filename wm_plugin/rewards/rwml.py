"""RWML's reward: the equation of §2.2 for what environments and users say, that of §C.1 for what tools return."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.base import check_texts, mean
from wm_plugin.rewards.embedding import EmbeddingReward
from wm_plugin.rewards.rouge import RougeReward, Variant


class RwmlReward:
    """ROUGE rounded to 0.2 for a tool's results, a thresholded embedding distance for everything else.

    Args:
        model: of the embeddings, see `EmbeddingReward`.
        threshold: τ_d: 0.2 on ALFWorld; 0.4 on τ²-bench, where users say the same thing in many ways.
        variant: of ROUGE; the paper does not say which.
        step: that ROUGE is rounded to; None: it is not rounded.
        tag: takes predictions out of whole outputs, see `TextReward`. RWML's is next_state.
        embedding: more of `EmbeddingReward`'s settings: base_url, batch_size, device, ...

    Attributes:
        figures: of the last call: `no_prediction` as in every `TextReward`, the mean rewards `rouge` and `embedding` of the rows
            that went each way, `no_tokens` of the first and `cosine` of the second.
    """

    def __init__(
        self,
        model: str | Path,
        threshold: float = 0.2,
        *,
        variant: Variant = "rougeL",
        step: float | None = 0.2,
        tag: str | None = None,
        **embedding: Any,
    ) -> None:
        if threshold is None:
            raise UserError(
                "threshold is None; write one, such as 0.2, or take EmbeddingReward, which gives the cosine then"
            )
        self.tag = tag
        self.rouge = RougeReward(variant, step, tag=tag)
        self.embedding = EmbeddingReward(model, threshold, tag=tag, **embedding)
        self.figures: dict[str, float] = {}

    def __call__(
        self, predictions: Sequence[str | None], targets: Sequence[str], *, observer: Sequence[str], **_columns: Any
    ) -> list[float]:
        """A score for each prediction, in order.

        Args:
            predictions, targets: as in `TextReward`.
            observer: who says what is predicted: `tool`, or `user` or `environment`.

        Raises:
            UserError: the lengths differ, something is no text, or the embeddings' server fails.
        """
        check_texts(predictions, targets)
        if len(observer) != len(targets):
            raise UserError(
                f"there are {len(targets)} targets and {len(observer)} values of observer; write one for each"
            )
        scores = [0.0] * len(targets)
        figures = {"no_prediction": 0.0}
        for name, reward in (("rouge", self.rouge), ("embedding", self.embedding)):
            rows = [row for row, who in enumerate(observer) if (who == "tool") == (reward is self.rouge)]
            if not rows:
                continue
            given = reward([predictions[row] for row in rows], [targets[row] for row in rows])
            for row, score in zip(rows, given, strict=True):
                scores[row] = score
            share = reward.figures["no_prediction"] * len(rows) / len(targets)
            figures |= {**reward.figures, name: mean(given), "no_prediction": figures["no_prediction"] + share}
        self.figures = figures
        return scores
