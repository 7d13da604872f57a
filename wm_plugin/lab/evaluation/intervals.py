"""Bootstrap intervals of ratios of sums, and of the difference of two ratios on the same rows.

Rows of a cluster, such as the turns of a trajectory, are not independent, so whole clusters are drawn.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 2000
SHARE = 0.99  # of a difference's interval; several measures are compared at once, and 0.95 would report too many differences
_PAIRED_DRAWS = 4000  # the limits of 99% are far out, where draws are few
_AT_ONCE = 1 << 21  # numbers drawn at once, which bounds the memory

Limits = tuple[float | None, float | None]
NONE: Limits = (None, None)


def by_cluster(columns: Sequence[Sequence[float] | Tensor], clusters: Sequence[Hashable]) -> Tensor:
    """Sum columns of one number a row by the rows' clusters; the result has shape (clusters, columns)."""
    number: dict[Hashable, int] = {}
    index = torch.tensor([number.setdefault(cluster, len(number)) for cluster in clusters], dtype=torch.long)
    sums = torch.zeros(len(number), len(columns), dtype=torch.float64)
    return sums.index_add_(0, index, torch.stack([torch.as_tensor(one, dtype=torch.float64) for one in columns], 1))


def draw(sums: Tensor, generator: torch.Generator, draws: int = DRAWS) -> Tensor:
    """Sum as many clusters as there are, drawn with replacement; the result has shape (draws, columns)."""
    drawn = []
    size = max(1, _AT_ONCE // sums.numel())
    for start in range(0, draws, size):
        picked = torch.randint(len(sums), (min(size, draws - start), len(sums)), generator=generator)
        drawn.append(sums[picked].sum(1))
    return torch.cat(drawn)


def limits(values: Tensor, share: float = 0.95) -> tuple[float, float]:
    """Return the limits of the middle share of draws; NaN if a draw is NaN."""
    low, high = values.quantile(torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)).tolist()
    return low, high


def interval(
    totals: Sequence[float], counts: Sequence[float], clusters: Sequence[Hashable], *, seed: int = 0
) -> Limits:
    """Return the 95% interval of sum(totals) / sum(counts), which is a mean where `counts` are 1.

    Clusters without a count are not drawn. With fewer than two others the result is (None, None).
    """
    drawn = _ratios(totals, counts, clusters, torch.Generator().manual_seed(seed))
    return NONE if drawn is None else limits(drawn)


def interval_of_means(cells: Sequence[tuple[float, Sequence[float], Sequence[Hashable]]], *, seed: int = 0) -> Limits:
    """Return the 95% interval of a weighted sum of means, such as a macro mean over domains.

    Args:
        cells: each mean's weight, values and clusters. Each cell draws its own clusters; one with fewer than two has no interval.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for weight, values, clusters in cells:
        means = _ratios(values, [1.0] * len(values), clusters, generator)
        if means is None:
            return NONE
        drawn.append(weight * means)
    return limits(torch.stack(drawn).sum(0)) if drawn else NONE


def _ratios(
    totals: Sequence[float], counts: Sequence[float], clusters: Sequence[Hashable], generator: torch.Generator
) -> Tensor | None:
    sums = by_cluster((totals, counts), clusters)
    sums = sums[sums[:, 1] > 0]
    if len(sums) < 2:
        return None
    both = draw(sums, generator)
    return both[:, 0] / both[:, 1]


@dataclass(frozen=True)
class Ratio:
    """A measure in parts of shape (episodes,): its mean is `total.sum() / count.sum()`."""

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> float:
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

    The interval covers the choice of episodes, not the variation between training runs.
    """
    parts = (of.total, of.count, against.total, against.count)
    if any(part.shape != (len(clusters),) for part in parts):
        raise ValueError(f"{len(clusters)} clusters for episodes of shapes {[tuple(part.shape) for part in parts]}")
    sums = by_cluster(parts, clusters)
    if len(sums) < 2:
        raise ValueError("fewer than two clusters: there is nothing to draw from")
    totals = draw(sums, torch.Generator().manual_seed(seed), _PAIRED_DRAWS)
    low, high = limits(totals[:, 0] / totals[:, 1] - totals[:, 2] / totals[:, 3], SHARE)
    return Difference(of.mean - against.mean, low, high)
