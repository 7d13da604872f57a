"""Decides how much tokens count, from where they came from; the one place that does so, for both hosts and for `wm masks`.

Hosts pass facts (`tokens.spans.Origin`); here an objective's options turn them into weights.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.information import category
from wm_plugin.tokens.spans import Decode, Ending, Mask, Origin, Span, texts_of

if TYPE_CHECKING:
    from wm_plugin.objectives.base import Objective


def weigh(
    origins: Iterable[Origin], config: "Objective", *, dropped: str | None = None, tally: Tally | None = None
) -> list[tuple[Span, float]]:
    """Return a completion's spans, each with the weight of its tokens in the sum.

    Args:
        origins: the environment's spans in the completion.
        dropped: the field that leaves the whole completion out: `zero_variance_groups`, as its group has no reward variance, or
            `select_rollout`; None if none does.
        tally: counts what became of the tokens.

    Returns:
        Every span with its weight; 0 = not selected, so not counted in N either.

    Raises:
        ValueError: `turn_information` is on, and an origin has no category.
    """
    weighed = []
    for origin in origins:
        cause = _left_out_by(origin, config, dropped)
        weighed.append((origin.span, 0.0 if cause else _multiplier(origin.span, config) * _ratio(origin, config)))
        if tally is not None:
            tally.add(origin, cause)
    return weighed


def _multiplier(span: Span, config: "Objective") -> float:
    return config.tool_multiplier(span.tool) * config.role_multiplier(span.role)


def _left_out_by(origin: Origin, config: "Objective", dropped: str | None) -> str | None:
    """Return the config's field that excludes a span; None if it is selected."""
    span = origin.span
    if config.role_multiplier(span.role) == 0.0:
        return "roles"
    if config.tool_multiplier(span.tool) == 0.0:
        return "tools"
    if origin.failed and not config.include_errors:
        return "include_errors"
    if origin.ending is Ending.TRUNCATED and not config.include_truncated:
        return "include_truncated"
    if dropped is not None:
        return dropped
    if config.content_only and not span.content:
        return "content_only"
    if config.select is not None and not config.select(span, origin.message):
        return "select"
    return None


def _ratio(origin: Origin, config: "Objective") -> float:
    ratios = config.turn_information
    if isinstance(ratios, bool):  # off: True became the ratio of every category
        return 1.0
    if origin.category is None:
        raise ValueError(f"turn_information weighs by the category of a turn, and {origin.span} has none")
    return ratios[origin.category]


def origins_of_tokens(
    spans: Sequence[Span],
    ids: Sequence[int],
    sampled: Mask,
    decode: Decode,
    ending: Ending,
    *,
    categorize: bool,
) -> list[Origin]:
    """Return the origins of spans of which only the tokens are known, such as a user's `env_spans`.

    Args:
        ids: (T,) the completion. sampled: (T,), 1 = sampled by the policy.
        decode: token ids -> text, without special tokens. Called if the categories of turns are wanted (`categorize`).
    """
    if not categorize:
        return [Origin(span, ending=ending) for span in spans]
    texts = texts_of(spans, ids, sampled, decode)
    return [Origin(span, category=category(*pair), ending=ending) for span, pair in zip(spans, texts, strict=True)]


def without_variance(groups: Sequence[Hashable], rewards: Sequence[float]) -> list[bool]:
    """Return for each completion whether all rewards of its group are equal.

    Args:
        groups: each completion's group. rewards: its reward; NaN if it has none, which makes no difference.
    """
    values: dict[Hashable, set[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        values.setdefault(group, set()).update(() if math.isnan(reward) else (reward,))
    return [len(values[group]) <= 1 for group in groups]
