import math

import pytest
import torch

from wm_plugin.lab.evaluation.intervals import by_cluster, draw, limits


def test_sums_are_of_the_rows_of_a_cluster_in_the_order_of_their_first() -> None:
    assert by_cluster(([1, 2, 3], torch.tensor([1.0, 0.0, 1.0])), ["b", "a", "b"]).tolist() == [[4, 2], [2, 0]]
    assert by_cluster(([], []), []).shape == (0, 2)


def test_a_draw_has_as_many_clusters_as_there_are_and_their_columns_together() -> None:
    drawn = draw(torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), torch.Generator().manual_seed(0), 50)
    assert drawn.shape == (50, 2)
    sums = {sum(parts) for parts in torch.cartesian_prod(*[torch.tensor([1.0, 2.0, 4.0])] * 3).tolist()}
    assert set(drawn[:, 0].tolist()) <= sums
    assert torch.equal(drawn[:, 1], 10 * drawn[:, 0])
    assert len(drawn[:, 0].unique()) > 3


def test_limits_are_of_the_middle_share() -> None:
    assert limits(torch.arange(101, dtype=torch.float64), 0.9) == pytest.approx((5, 95))
    assert all(map(math.isnan, limits(torch.tensor([1.0, math.nan], dtype=torch.float64))))
