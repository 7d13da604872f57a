"""The table of benchmarks/agent_sft_135m.py, and which tokens it measures."""

import pytest

pytest.importorskip("trl", minversion="1.16")

import agent_sft_135m as benchmark
import stamps

pytestmark = pytest.mark.host


def test_the_table_has_the_means_of_the_seeds_that_have_both_arms_and_their_differences():
    level = dict.fromkeys(benchmark.METRICS, 1.0)
    arms = [{"stock": level, "term": level | {"env_nll": 0.5 + seed / 10}, "0.1": level} for seed in range(3)]
    arms.append({"start": {"env_nll": 2.0}, "stock": level | {"env_nll": 9.0}})  # of the arm `term` nothing yet
    text = benchmark.page([{"seed": seed, "seconds": 5, "arms": of} for seed, of in enumerate(arms)])
    assert "20 seconds in all" in text
    half = 4.303 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    assert f"| term, n = 3 | 0.600 ± {half:.3f} | 1.000 ± 0.000 |" in text
    assert "| stock, n = 4 | 3.000 ±" in text
    assert f"| term - stock | env_nll | -0.400 ± {half:.3f} | lower |" in text
    assert "| 0.1 - stock | env_nll | +0.000 ± 0.000 |" in text
    assert "| 3 | start | 2.000 |  |  |  |  |" in text


def test_the_committed_page_is_of_the_committed_figures():
    path = benchmark.RESULTS
    page = stamps.headed(benchmark.page(benchmark.read(path)), stamps.read()[path.stem])
    assert path.with_suffix(".md").read_text() == page


def test_a_quick_run_stays_in_the_folder_of_its_runs(tmp_path, monkeypatch):
    class Runs:
        start = "the pretrained model"

        def __init__(self, folder, model, settings):
            assert (folder.name, settings) == ("quick", benchmark.QUICK)
            folder.mkdir()

        def trained(self, seed, arm):
            return arm

        def measure(self, folder):
            return dict.fromkeys(benchmark.METRICS, 1.0)

    before = benchmark.RESULTS.read_text()
    monkeypatch.setattr(benchmark, "Runs", Runs)
    monkeypatch.setattr(
        "sys.argv", ["agent_sft_135m", "--model", "m", "--seeds", "1", "2", "--quick", "--work", str(tmp_path)]
    )
    benchmark.main()
    assert "| 2 | term | 1.000 |" in (tmp_path / "quick" / "agent_sft_135m.md").read_text()
    assert benchmark.RESULTS.read_text() == before


def test_observations_are_their_contents():
    spans = [{"start": 1, "end": 2, "content": False}, {"start": 2, "end": 4, "content": True}]
    assert benchmark.spans({"input_ids": [5] * 6, "env_spans": spans}) == [0, 0, 1, 1, 0, 0]
