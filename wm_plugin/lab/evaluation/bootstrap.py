"""Bootstrap intervals: sums by cluster, draws of whole clusters, percentile limits.

Rows of a cluster, such as the turns of a trajectory, are not independent, so they are drawn together.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

DRAWS = 2000
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
    edges = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)
    low, high = values.quantile(edges).tolist()
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
        cells: each mean's weight, values and clusters. Each cell draws its own clusters.

    Returns:
        (None, None) if there is no cell, or one has fewer than two clusters.
    """
    generator = torch.Generator().manual_seed(seed)
    whole: Tensor | None = None
    for weight, values, clusters in cells:
        drawn = _ratios(values, [1.0] * len(values), clusters, generator)
        if drawn is None:
            return NONE
        whole = weight * drawn if whole is None else whole + weight * drawn
    return NONE if whole is None else limits(whole)


def _ratios(
    totals: Sequence[float], counts: Sequence[float], clusters: Sequence[Hashable], generator: torch.Generator
) -> Tensor | None:
    """Return the ratio of the sums in each draw of clusters; None with fewer than two."""
    sums = by_cluster((totals, counts), clusters)
    sums = sums[sums[:, 1] > 0]
    if len(sums) < 2:
        return None
    both = draw(sums, generator)
    return both[:, 0] / both[:, 1]
