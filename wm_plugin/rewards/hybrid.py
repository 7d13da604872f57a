"""A judge's rubric with rules as its anchor (Qwen-AgentWorld, section 3.4.1).

    R = (9 · rubric + 1 · rule) / 10        rubric: the mean of five scores · 5, in [5, 25]; 0 if the judge fails
                                            rule: 25 if the row's verifier holds, else 0

No text can persuade the rule: even at full marks, a prediction that breaks its rule gets at most 22.5 of 25.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.base import TaggedReward, check_choice, mean
from wm_plugin.rewards.make import build
from wm_plugin.rewards.rubric import RubricReward, Scale
from wm_plugin.rewards.rules import RuleReward

TOP = 25.0  # the highest rubric reward, and the reward of a rule that holds


class HybridReward(TaggedReward):
    """The weighted mean of a rubric and of each row's verifier. A row without a verifier gets the rubric's reward alone.

    Columns: those of `RubricReward` and of `RuleReward`.

    Args:
        rubric: a `RubricReward` in the paper's scale, or its arguments.
        rules: a `RuleReward`, or its arguments; None for the defaults. Its `scale` and `unverified` are not used.
        weights: the weights of rubric and rule.
        scale: "paper" gives 0 to 25; "unit" divides by 25. GRPO's advantages are the same on both, except for its epsilon.
        tag: see `TaggedReward`. It serves both parts, which have no tag of their own.

    Attributes:
        figures: the rubric's; the rules', prefixed with `rules/`; and on the paper's scale `hybrid/rubric`, the rubric's mean,
            and `hybrid/rule`, the rule's mean over rows with a verifier.
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
        super().__init__(tag=tag)
        check_choice("scale", scale, get_args(Scale))
        if len(weights) != 2 or not all(0 <= weight < math.inf for weight in weights) or not sum(weights):
            raise UserError(f"weights is {shown(weights)}; write two numbers >= 0, of rubric and rule, such as [9, 1]")
        self.rubric = _part("rubric", RubricReward, rubric)
        self.rules = _part("rules", RuleReward, rules or {})
        if self.rubric.scale != "paper":
            raise UserError(
                f"rubric: scale is {shown(self.rubric.scale)}; leave it out, and write scale beside the rubric"
            )
        for name, part in (("rubric", self.rubric), ("rules", self.rules)):
            if part.tag is not None:
                raise UserError(f"{name}: tag is {shown(part.tag)}; leave it out, and write tag beside the {name}")
        self.weights, self.scale = tuple(weights), scale

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        texts = self.extracted(predictions, targets)
        verdicts = self.rules.verdicts(texts, targets, **columns)
        return self._combined(self.rubric(texts, targets, **columns), verdicts)

    async def call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        """Do what `__call__` does, inside an event loop and without blocking it."""
        texts = self.extracted(predictions, targets)
        verdicts = await asyncio.to_thread(self.rules.verdicts, texts, targets, **columns)
        return self._combined(await self.rubric.call_async(texts, targets, **columns), verdicts)

    def _combined(self, judged: Sequence[float], verdicts: Sequence[bool | None]) -> list[float]:
        a, b = self.weights
        divisor = 1.0 if self.scale == "paper" else TOP
        rewards = [
            (rubric if verdict is None else (a * rubric + b * TOP * verdict) / (a + b)) / divisor
            for rubric, verdict in zip(judged, verdicts, strict=True)
        ]
        self.figures = {
            **self.rubric.figures,
            **{f"rules/{name}": value for name, value in self.rules.figures.items()},
            "hybrid/rubric": mean(judged),
            "hybrid/rule": mean([TOP * verdict for verdict in verdicts if verdict is not None]),
        }
        return rewards


def _part(name: str, kind: type[Any], value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{name} is {shown(value)}; write a {kind.__name__}, or its arguments")
    return build(kind, value, name)
