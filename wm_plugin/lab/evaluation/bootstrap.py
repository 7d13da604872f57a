"""What all intervals of evaluations are made of: sums by cluster, draws of whole clusters, limits.

Rows of a cluster, such as the turns of a trajectory, are not independent, so that they are drawn together. The intervals differ
in what one draw gives:

* `measures.interval`: a ratio of sums. A cluster without a count is not drawn, so that no draw is without any.
* `measures.interval_of_means`: a weighted sum of means, in each of which clusters are drawn on their own.
* `compare.compare`: a difference of two ratios on the same clusters, all of which are drawn; of 99%, from twice the draws.
* `consistency`: CR of agents on the same tasks. Tasks without a real success are drawn, since W2R may have one; draws in which
  Real is 0 are left out.

`report.arms.spread` draws nothing: it has a value of each run, and these are few.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

DRAWS = 2000
_AT_ONCE = 1 << 21  # numbers that are drawn at once, which bounds the memory


def by_cluster(columns: Sequence[Sequence[float] | Tensor], clusters: Sequence[Hashable]) -> Tensor:
    """The sums of columns, which have a number for each row, of shape (clusters, columns).

    Args:
        clusters: of each row.
    """
    number: dict[Hashable, int] = {}
    index = torch.tensor([number.setdefault(cluster, len(number)) for cluster in clusters], dtype=torch.long)
    sums = torch.zeros(len(number), len(columns), dtype=torch.float64)
    return sums.index_add_(0, index, torch.stack([torch.as_tensor(one, dtype=torch.float64) for one in columns], 1))


def draw(sums: Tensor, generator: torch.Generator, draws: int = DRAWS) -> Tensor:
    """The sums over as many clusters as there are, drawn with replacement, of shape (draws, columns)."""
    drawn = []
    size = max(1, _AT_ONCE // sums.numel())
    for start in range(0, draws, size):
        picked = torch.randint(len(sums), (min(size, draws - start), len(sums)), generator=generator)
        drawn.append(sums[picked].sum(1))
    return torch.cat(drawn)


def limits(values: Tensor, share: float = 0.95) -> tuple[float, float]:
    """The limits of the middle share of draws; NaN where one of them is."""
    edges = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)
    low, high = values.quantile(edges).tolist()
    return low, high
