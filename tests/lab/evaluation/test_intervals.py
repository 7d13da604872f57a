"""Bootstrap intervals and paired differences."""

import math
import random

import pytest
import torch

from wm_plugin.lab.evaluation import intervals
from wm_plugin.lab.evaluation.intervals import (
    Ratio,
    by_cluster,
    compare,
    draw,
    interval,
    interval_of_means,
    limits,
)


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


def test_intervals_cover_as_often_as_they_say():
    """Clusters of four rows that share a mean: rows alone would give intervals that are too narrow."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for trial in range(200):
        clusters = [index // 4 for index in range(160)]
        shared = torch.rand(40, generator=generator).repeat_interleave(4)
        values = (torch.rand(160, generator=generator) < shared).double()
        low, high = interval(values.tolist(), [1.0] * 160, clusters, seed=trial)
        covered += low <= 0.5 <= high
    assert 0.9 <= covered / 200 <= 0.99  # a percentile interval of 40 clusters is a little too narrow


def test_an_interval_is_the_same_however_many_are_drawn_at_once(monkeypatch):
    values, clusters = [0.1 * (row % 7) for row in range(60)], [row // 3 for row in range(60)]
    whole = interval(values, [1] * 60, clusters)
    for size in (1, 33 * 40, 10**9):
        monkeypatch.setattr(intervals, "_AT_ONCE", size)
        assert interval(values, [1] * 60, clusters) == whole


def test_an_interval_needs_two_clusters():
    assert interval([1.0, 0.0], [1, 1], ["a", "a"]) == (None, None)
    assert interval([1.0, 0.0], [1, 0], ["a", "b"]) == (None, None)
    assert interval([1.0, 1.0], [1, 1], ["a", "b"]) == (1.0, 1.0)


def test_interval_of_one_mean_is_that_of_a_ratio():
    values, clusters = [0.0, 1.0, 3.0, 5.0, 8.0], [0, 0, 1, 2, 3]
    assert interval_of_means([(1.0, values, clusters)], seed=4) == interval(values, [1.0] * 5, clusters, seed=4)


def test_interval_of_a_macro_mean_has_as_much_of_each_group():
    many, few = [float(n % 2) for n in range(400)], [10.0, 20.0]
    low, high = interval_of_means([(0.5, many, range(400)), (0.5, few, "ab")])
    assert low == pytest.approx(5.25, abs=0.06)  # the few decide: 10, 15 or 20, each half
    assert high == pytest.approx(10.25, abs=0.06)
    assert interval_of_means([(0.5, many, range(400)), (0.5, [1.0], "a")]) == (None, None)
    assert interval_of_means([]) == (None, None)


def flips(share: float, count: int, seed: int) -> Ratio:
    rng = random.Random(seed)
    return Ratio(torch.tensor([float(rng.random() < share) for _ in range(count)]), torch.ones(count))


def test_the_interval_of_a_mean_has_the_normal_width() -> None:
    first, second = flips(0.7, 500, 1), flips(0.5, 500, 2)
    result = compare(first, second, range(500))
    assert result.difference == pytest.approx(first.mean - second.mean)
    paired = first.total - second.total
    half = 2.576 * paired.std().item() / math.sqrt(500)
    assert result.low == pytest.approx(result.difference - half, abs=0.15 * half)
    assert result.high == pytest.approx(result.difference + half, abs=0.15 * half)


def test_verdicts() -> None:
    high, low, same = flips(0.8, 300, 1), flips(0.4, 300, 2), flips(0.8, 300, 3)
    assert compare(high, low, range(300)).verdict == "higher"
    assert compare(low, high, range(300)).verdict == "lower"
    assert compare(high, same, range(300)).verdict == "no difference at this sample size"
    assert compare(high, high, range(300)).verdict == "no difference at this sample size"


def test_copies_within_a_cluster_add_no_certainty() -> None:
    first, second = flips(0.6, 60, 1), flips(0.5, 60, 2)
    once = compare(first, second, range(60))
    copied = [Ratio(part.total.repeat(5), part.count.repeat(5)) for part in (first, second)]
    clustered = compare(*copied, [index % 60 for index in range(300)])
    assert (clustered.low, clustered.high) == pytest.approx((once.low, once.high))
    unclustered = compare(*copied, range(300))
    assert unclustered.high - unclustered.low < 0.6 * (once.high - once.low)


def test_a_ratio_weighs_every_token_alike() -> None:
    tokens = Ratio(torch.tensor([10.0, 1.0]), torch.tensor([10.0, 4.0]))
    assert tokens.mean == pytest.approx(11 / 14)
    assert compare(tokens, tokens, ["a", "b"]).difference == 0


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="2 clusters for episodes"):
        compare(flips(0.5, 3, 0), flips(0.5, 3, 0), range(2))
    with pytest.raises(ValueError, match="fewer than two"):
        compare(flips(0.5, 3, 0), flips(0.5, 3, 0), [0, 0, 0])
