"""The page of benchmarks/grid_135m.py."""

import json

import pytest

pytest.importorskip("trl", minversion="1.16")

import grid_135m as benchmark
import stamps

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


def test_the_committed_page_is_of_the_committed_figures():
    path = benchmark.RESULTS
    page = stamps.headed(benchmark.page(benchmark.read(path)), stamps.read()[path.stem])
    assert path.with_suffix(".md").read_text() == page


def test_an_arm_that_was_measured_whole_is_not_trained_again(tmp_path, monkeypatch):
    class Trained(Exception):
        pass

    class Runs:
        def __init__(self, folder, model, settings):
            pass

        def trained(self, seed, base, coeff):
            raise Trained(seed, base, coeff)

    monkeypatch.setattr(benchmark, "Grid", Runs)
    words = ["grid_135m", "--model", "m", "--seeds", "20", "--bases", "cloned", "--quick", "--work", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    records = [record(20, "cloned", coeff, step) for coeff in benchmark.COEFFS for step in (0, 1, 2)]
    (tmp_path / "quick").mkdir()
    written = tmp_path / "quick" / "grid_135m.json"
    written.write_text(json.dumps(records))
    benchmark.main()
    assert "| 20 | cloned | 0.05 | 2 |" in written.with_suffix(".md").read_text()
    written.write_text(json.dumps(records[:-1]))  # its last step is missing
    with pytest.raises(Trained, match="20, 'cloned', 0.05"):
        benchmark.main()
