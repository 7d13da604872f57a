"""RWML's reward: embedding distance for observations of environments and users (§2.2), ROUGE for tool results (§C.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.base import TaggedReward, check_column, mean
from wm_plugin.rewards.embedding import EmbeddingReward
from wm_plugin.rewards.rouge import Numbers, RougeReward, Variant

OBSERVERS = ("tool", "user", "environment")


class RwmlReward(TaggedReward):
    """ROUGE rounded to 0.2 for tool results, a thresholded embedding distance for everything else.

    Args:
        model: the embedding model; see `EmbeddingReward`.
        threshold: τ_d. The paper has 0.2 on ALFWorld and 0.4 on τ²-bench, where users say the same thing in many ways.
        variant: ROUGE's variant; the paper does not name one.
        step: round ROUGE to multiples of this; None does not round.
        numbers: "exact" gives 0 to a tool result with a wrong number; see `RougeReward`. The paper's rule, "tokens", pays in
            full for a wrong amount in a long result.
        tag: see `TaggedReward`. RWML's is next_state.
        embedding: further settings of `EmbeddingReward`: base_url, batch_size, device, ...

    Attributes:
        figures: `no_prediction`, the share of rows without one; `rouge` and `embedding`, the mean reward of the rows that each
            scored; `no_tokens` of ROUGE and `cosine` of the embedding. The last four only if such rows exist.
    """

    def __init__(
        self,
        model: str | Path,
        threshold: float = 0.2,
        *,
        variant: Variant = "rougeL",
        step: float | None = 0.2,
        numbers: Numbers = "tokens",
        tag: str | None = None,
        **embedding: Any,
    ) -> None:
        if threshold is None:
            raise UserError(
                "threshold is None; write one, such as 0.2, or take EmbeddingReward, which gives the cosine"
            )
        super().__init__(tag=tag)
        self.rouge = RougeReward(variant, step, numbers=numbers)
        self.embedding = EmbeddingReward(model, threshold, **embedding)

    def __call__(
        self, predictions: Sequence[str | None], targets: Sequence[str], *, observer: Sequence[str], **_columns: Any
    ) -> list[float]:
        """Score each row, in order.

        Args:
            predictions, targets: as in `TaggedReward`.
            observer: where each observation comes from: `tool`, `user` or `environment`.
        """
        texts = self.extracted(predictions, targets)
        check_column("observer", observer, targets)
        for row, who in enumerate(observer):
            if not isinstance(who, str) or who not in OBSERVERS:
                raise UserError(f"observer of row {row} is {shown(who)}; write tool, user or environment")
        scores = [0.0] * len(targets)
        figures = {"no_prediction": 0.0}
        for name, reward in (("rouge", self.rouge), ("embedding", self.embedding)):
            rows = [row for row, who in enumerate(observer) if (who == "tool") == (reward is self.rouge)]
            if not rows:
                continue
            values = reward([texts[row] for row in rows], [targets[row] for row in rows])
            for row, score in zip(rows, values, strict=True):
                scores[row] = score
            share = reward.figures["no_prediction"] * len(rows) / len(targets)
            figures |= {**reward.figures, name: mean(values), "no_prediction": figures["no_prediction"] + share}
        self.figures = figures
        return scores
