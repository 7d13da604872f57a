import math
import random

import pytest
import torch

from wm_plugin.lab.evaluation.intervals import Ratio, compare


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


@pytest.mark.slow
def test_chance_is_rarely_called_a_difference() -> None:
    called = sum(
        compare(flips(0.5, 200, 2 * trial), flips(0.5, 200, 2 * trial + 1), range(200)).verdict.startswith(
            ("higher", "lower")
        )
        for trial in range(40)
    )
    assert called <= 2


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
