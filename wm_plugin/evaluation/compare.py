"""Is one measure higher than another, or is it chance? A paired bootstrap over what both were measured on."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHARE = 0.99  # of the interval: several measures are compared at once, and 0.95 would find a difference too many
_DRAWS, _CHUNK = 4000, 100  # in chunks, for the memory that thousands of clusters would take


@dataclass(frozen=True)
class Ratio:
    """A measure as its parts, of shape (episodes,): the mean is `total.sum() / count.sum()`."""

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> float:
        return float(self.total.sum() / self.count.sum())


@dataclass(frozen=True)
class Difference:
    """`of` minus `against`, with the limits of its interval."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "no difference at this sample size"


def compare(of: Ratio, against: Ratio, clusters: Sequence[Hashable], seed: int = 0) -> Difference:
    """The difference of two measures of the same episodes, with a percentile interval of 99%.

    Episodes of one cluster (tasks of the same layout, say) are drawn together, because they are not independent. The interval
    covers the choice of episodes; it knows nothing of how much another training run would differ.

    Raises:
        ValueError: The shapes differ, or there are fewer than two clusters.
    """
    parts = (of.total, of.count, against.total, against.count)
    if any(part.shape != (len(clusters),) for part in parts):
        raise ValueError(f"{len(clusters)} clusters for episodes of shapes {[tuple(part.shape) for part in parts]}")
    number = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    if len(number) < 2:
        raise ValueError("fewer than two clusters: there is nothing to draw from")
    index = torch.tensor([number[cluster] for cluster in clusters])
    sums = torch.zeros(len(number), 4, dtype=torch.float64)
    sums.index_add_(0, index, torch.stack([part.double() for part in parts], 1))
    generator = torch.Generator().manual_seed(seed)
    totals = torch.cat(
        [
            sums[torch.randint(len(number), (_CHUNK, len(number)), generator=generator)].sum(1)
            for _ in range(_DRAWS // _CHUNK)
        ]
    )
    differences = totals[:, 0] / totals[:, 1] - totals[:, 2] / totals[:, 3]
    edges = torch.tensor([(1 - SHARE) / 2, (1 + SHARE) / 2], dtype=torch.float64)
    low, high = differences.quantile(edges).tolist()
    return Difference(of.mean - against.mean, low, high)
