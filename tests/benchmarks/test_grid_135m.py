"""The page of benchmarks/grid_135m.py."""

import pytest

pytest.importorskip("trl", minversion="1.16")

import grid_135m as benchmark

pytestmark = pytest.mark.host


def record(seed, base, coeff, step, **figures):
    level = dict.fromkeys(benchmark.METRICS, 1.0) | figures
    return {"seed": seed, "base": base, "coeff": coeff, "step": step, "cpu_seconds": 30, **level}


def test_the_page_pairs_seeds_that_have_both_arms_after_the_last_step():
    records = [
        record(seed, "cloned", coeff, step, success=0.5 + coeff * (step == 60) * (1 + seed))
        for seed in range(3)
        for coeff in benchmark.COEFFS
        for step in (0, 60)
        if (seed, coeff, step) != (2, 0.05, 60)  # cut
    ]
    text = benchmark.page(records)
    assert "6 CPU minutes in all" in text
    assert "| cloned | 0 | 60 | 3 | 0.500 ± 0.000 |" in text
    assert "| cloned | 0.05 | 60 | 2 | 0.575 ± 0.318 |" in text  # Student's t of one degree of freedom
    assert "| cloned | success | 2 | +0.075 ± 0.318 | null (the interval contains 0) |" in text
    assert "| 1 | cloned | 0.05 | 60 | 0.600 |" in text
    assert "with the term | 0" not in text
