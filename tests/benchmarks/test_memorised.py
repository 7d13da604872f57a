"""Rises and their table in benchmarks/memorised.py, and that one of its runs measures both splits."""

import pytest

pytest.importorskip("trl", minversion="1.16")
pytest.importorskip("bm25s")

import memorised as benchmark
import stamps
from agent_sft_135m import read

pytestmark = pytest.mark.host


def test_a_rise_is_from_epoch_20_to_60_and_is_paired_by_seed():
    count = benchmark.SETTINGS["epochs"] // benchmark.SETTINGS["every"] + 1
    early = benchmark.SETTINGS["early"] // benchmark.SETTINGS["every"]
    records = []
    for seed in range(3):
        flat = [2.0] * count
        risen = [5.0] * early + [1.0] * (count - early - 1) + [1.5 + seed / 10]
        worlds = {"docs": {"seen": flat, "unseen": risen}, "grid": {"seen": flat, "unseen": flat}}
        records.append({"seed": seed, "cpu_seconds": 60, **worlds})
    text = benchmark.page(records)
    half = 4.303 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    assert f"| docs | 3 | +0.600 ± {half:.3f} | higher |" in text
    assert "| grid | 3 | +0.000 ± 0.000 | null" in text
    assert f"| docs - grid | 3 | +0.600 ± {half:.3f} | higher |" in text
    assert "3 CPU minutes in all" in text


@pytest.mark.parametrize("world", benchmark.WORLDS)
def test_a_run_learns_the_results_of_its_tasks(world, monkeypatch):
    monkeypatch.setattr(benchmark, "SETTINGS", {**benchmark.SETTINGS, "tasks": 8, "epochs": 2, "every": 1})
    found = benchmark.train(world, 0)
    assert {len(values) for values in found.values()} == {3}  # before, and after each epoch
    assert found["seen"][-1] < found["seen"][0] - 0.1
    assert found["unseen"] != found["seen"]


def test_the_committed_page_is_of_the_committed_figures():
    path = benchmark.RESULTS
    page = stamps.headed(benchmark.page(read(path)), stamps.read()[path.stem])
    assert path.with_suffix(".md").read_text() == page
