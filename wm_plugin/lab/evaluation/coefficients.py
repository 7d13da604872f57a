"""Which coefficient of one trainer's ECHO is as strong as that of another, on given rollouts.

Their terms select other tokens and divide by other counts, so that the same number pulls differently. What is held equal is the
total weight that a term puts on the tokens which all of them train: content of tools' results that is no host's error.
"""

from collections.abc import Iterator, Sequence

import torch

from wm_plugin.objectives.base import Objective
from wm_plugin.objectives.echo import PRESETS, EchoConfig
from wm_plugin.objectives.run import Objectives
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin, token_weights


def pull(rollouts: Sequence[Sequence[Origin]], config: EchoConfig, micro_batches: int = 1) -> float:
    """Return the weight that a term with coefficient 1 puts on tools' content, summed over an optimizer batch.

    Args:
        rollouts: the environment's spans of each rollout of the batch.
        config: what is selected, and divided by what.
        micro_batches: parts of the batch, of as many rollouts each, for `per_micro_batch`.
    """
    length = max((origin.span.end for own in rollouts for origin in own), default=0)
    anchor = _weights(rollouts, EchoConfig(roles=("tool",)), length) != 0
    environment = _weights(rollouts, EchoConfig(content_only=False, include_errors=True), length)
    total = 0.0
    for one in Objectives.read(config).values():
        weights = _weights(rollouts, one, length)
        size = -(-len(weights) // micro_batches) if one.normalization == "per_micro_batch" else len(weights)
        shares, count = one.share(weights), one.count(weights, environment, len(weights))
        for start in range(0, len(weights), max(size, 1)):
            part = slice(start, start + size)
            divisor = one.denominator(weights[part], count, 1)
            total += float((shares * anchor)[part].sum() / max(float(divisor), 1.0))
    return total


def equivalents(
    rollouts: Sequence[Sequence[Origin]], preset: str, alpha: float | None, micro_batches: int = 1
) -> Iterator[dict[str, object]]:
    """Yield a row a preset: its own coefficient, and the one with which it pulls as hard as `preset` does with `alpha`."""
    strength = (PRESETS[preset]["coeff"] if alpha is None else alpha) * pull(
        rollouts, EchoConfig.read({"preset": preset}), micro_batches
    )
    for name, fields in PRESETS.items():
        own = pull(rollouts, EchoConfig.read({"preset": name}), micro_batches)
        yield {
            "preset": name,
            "normalization": fields["normalization"],
            "its own coefficient": fields["coeff"],
            "as strong": strength / own if own else None,
        }


def _weights(rollouts: Sequence[Sequence[Origin]], config: Objective, length: int) -> torch.Tensor:
    weights, _ = token_weights([weigh(own, config) for own in rollouts], length, [])
    return weights.double()
