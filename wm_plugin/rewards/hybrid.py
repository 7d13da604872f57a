"""A judge's rubric with rules as its anchor (Qwen-AgentWorld, section 3.4.1).

    R = (9 · rubric + 1 · rule) / 10        rubric: the mean of five scores · 5, in [5, 25], 0 where the judge fails
                                            rule: 25 where the row's verifier holds, else 0

The rule is binary and cannot be talked to: of what a judge could be made to give, a prediction that breaks its rule gets nine
tenths at most, 22.5 of 25.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards.base import mean
from wm_plugin.rewards.extract import check_tag, extract
from wm_plugin.rewards.rubric import RubricReward, Scale
from wm_plugin.rewards.rules import RuleReward

TOP = 25.0  # of the rubric, and what a rule that holds is worth


class HybridReward:
    """The weighted mean of a rubric and of each row's verifier. A row without a verifier is the rubric alone, and counted.

    Columns: those of `RubricReward` and of `RuleReward`.

    Args:
        rubric: a `RubricReward` in the paper's scale, or its arguments.
        rules: a `RuleReward`, or its arguments; None: the defaults. Of its own `scale` and `unverified` nothing is used.
        weights: of rubric and rule.
        scale: "paper" gives 0 to 25; "unit" divides by 25. GRPO's advantages are the same, but for its epsilon.
        tag: takes predictions out of whole outputs, see `TextReward`, once for both parts; they have none of their own.

    Attributes:
        figures: of the last call: the rubric's own; the rules' own, with `rules/` in front; `hybrid/rubric`, its mean; and
            `hybrid/rule`, the mean over rows with a verifier, both in the paper's scale.
    """

    def __init__(
        self,
        rubric: RubricReward | Mapping[str, Any],
        rules: RuleReward | Mapping[str, Any] | None = None,
        *,
        weights: Sequence[float] = (9.0, 1.0),
        scale: Scale = "paper",
        tag: str | None = None,
    ) -> None:
        check_tag(tag)
        if scale not in get_args(Scale):
            raise UserError(f"scale is {scale!r}{nearest(str(scale), get_args(Scale))}")
        if len(weights) != 2 or not all(0 <= weight < math.inf for weight in weights) or not sum(weights):
            raise UserError(f"weights is {weights!r}; write two numbers >= 0, of rubric and rule, such as [9, 1]")
        self.rubric = _part("rubric", RubricReward, rubric)
        self.rules = _part("rules", RuleReward, rules or {})
        if self.rubric.scale != "paper":
            raise UserError(f"rubric: scale is {self.rubric.scale!r}; leave it out, and write scale beside the rubric")
        for name, part in (("rubric", self.rubric), ("rules", self.rules)):
            if part.tag is not None:
                raise UserError(f"{name}: tag is {part.tag!r}; leave it out, and write tag beside the {name}")
        self.weights, self.scale, self.tag = tuple(weights), scale, tag
        self.figures: dict[str, float] = {}

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        """A score for each prediction, in order."""
        said = self._extracted(predictions)
        verdicts = self.rules.verdicts(said, targets, **columns)
        return self._combined(self.rubric(said, targets, **columns), verdicts)

    async def call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        """The same for code inside an event loop, which goes on meanwhile."""
        said = self._extracted(predictions)
        verdicts = await asyncio.to_thread(self.rules.verdicts, said, targets, **columns)
        return self._combined(await self.rubric.call_async(said, targets, **columns), verdicts)

    def _extracted(self, predictions: Sequence[str | None]) -> Sequence[str | None]:
        if self.tag is None:
            return predictions
        return [None if text is None else extract(text, self.tag).prediction for text in predictions]

    def _combined(self, judged: Sequence[float], verdicts: Sequence[bool | None]) -> list[float]:
        ours, theirs = self.weights
        divisor = 1.0 if self.scale == "paper" else TOP
        rewards = [
            (rubric if verdict is None else (ours * rubric + theirs * TOP * verdict) / (ours + theirs)) / divisor
            for rubric, verdict in zip(judged, verdicts, strict=True)
        ]
        self.figures = {
            **self.rubric.figures,
            **{f"rules/{name}": value for name, value in self.rules.figures.items()},
            "hybrid/rubric": mean(judged),
            "hybrid/rule": mean([TOP * verdict for verdict in verdicts if verdict is not None]),
        }
        return rewards


def _part(name: str, kind: type[Any], given: Any) -> Any:
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise UserError(f"{name} is {given!r:.80}; write a {kind.__name__}, or its arguments")
    try:
        return kind(**given)
    except TypeError as error:
        raise UserError(f"{name}: {error}") from None
