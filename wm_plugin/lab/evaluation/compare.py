"""A paired bootstrap: is one measure higher than another on the same episodes, or is the difference chance?"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_plugin.lab.evaluation.bootstrap import by_cluster, draw, limits

SHARE = 0.99  # of the interval; several measures are compared at once, and 0.95 would report too many differences
_DRAWS = 4000  # the limits of 99% are far out, where draws are few


@dataclass(frozen=True)
class Ratio:
    """A measure in parts of shape (episodes,): its mean is `total.sum() / count.sum()`."""

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> float:
        """The mean over all episodes."""
        return float(self.total.sum() / self.count.sum())


@dataclass(frozen=True)
class Difference:
    """The difference of two measures, with the limits of its interval."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`higher` or `lower` if the interval excludes 0, else `no difference at this sample size`."""
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "no difference at this sample size"


def compare(of: Ratio, against: Ratio, clusters: Sequence[Hashable], seed: int = 0) -> Difference:
    """Return the difference `of` − `against` of two measures of the same episodes, with a percentile interval of 99%.

    Episodes of one cluster (such as tasks with the same layout) are drawn together, because they are not independent. The
    interval covers the choice of episodes, not the variation between training runs.

    Raises:
        ValueError: The shapes differ, or there are fewer than two clusters.
    """
    parts = (of.total, of.count, against.total, against.count)
    if any(part.shape != (len(clusters),) for part in parts):
        raise ValueError(f"{len(clusters)} clusters for episodes of shapes {[tuple(part.shape) for part in parts]}")
    sums = by_cluster(parts, clusters)
    if len(sums) < 2:
        raise ValueError("fewer than two clusters: there is nothing to draw from")
    totals = draw(sums, torch.Generator().manual_seed(seed), _DRAWS)
    low, high = limits(totals[:, 0] / totals[:, 1] - totals[:, 2] / totals[:, 3], SHARE)
    return Difference(of.mean - against.mean, low, high)
