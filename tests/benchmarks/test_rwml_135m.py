"""The page of benchmarks/rwml_135m.py, and the transitions that its arms share."""

import json

import pytest

pytest.importorskip("trl", minversion="1.16")

import pyarrow.parquet

import rwml_135m as benchmark
import stamps
from agent_sft_135m import read
from wm_plugin.cli.main import main
from wm_plugin.data.transitions import read_transitions
from wm_plugin.lab.tiny.policy import make_tokenizer

pytestmark = pytest.mark.host


def record(seed, arm, **figures):
    return {"seed": seed, "arm": arm, "cpu_seconds": 30, **dict.fromkeys(benchmark.METRICS, 1.0), **figures}


def test_the_page_pairs_seeds_that_have_every_arm():
    records = [
        record(seed, arm, changed=0.5 + 0.1 * seed * (arm == "rwml"))
        for seed in range(3)
        for arm in benchmark.ARMS
        if (seed, arm) != (2, "rwml")  # cut
    ]
    text = benchmark.page(records)
    assert "6 CPU minutes in all" in text
    assert "| rwml | 2 | 0.550 ± 0.635 |" in text  # Student's t of one degree of freedom
    assert "| same | changed | +0.050 ± 0.635 | null (the interval contains 0) |" in text
    assert "| 2 | same | 0.500 |" in text


def test_each_arm_learns_the_same_transitions_and_none_of_the_warm_start(tmp_path, monkeypatch):
    def here(self, made, *words):  # and not in a process for each
        assert main([*words, "--out", str(made)]) == 0

    monkeypatch.setattr(benchmark.Foreseen, "wm", here)
    make_tokenizer().save_pretrained(tmp_path / "model")
    runs = benchmark.Foreseen(tmp_path / "runs", tmp_path / "model", benchmark.QUICK)
    rows = runs.rows(20)
    warm, learnt = ([*read_transitions(rows / f"{part}.jsonl")] for part in ("warm", "learnt"))
    assert (len(warm), len(learnt)) == (benchmark.QUICK["warm"], benchmark.QUICK["learnt"])
    assert not {(one.trajectory, one.turn) for one in warm} & {(one.trajectory, one.turn) for one in learnt}
    rewarded = [json.loads(line) for line in (rows / "rwml" / "train.jsonl").read_text().splitlines()]
    tokens = pyarrow.parquet.read_table(rows / "learnt.parquet").to_pylist()
    assert len(rewarded) == len(tokens) == len(learnt)
    tokenizer = make_tokenizer()
    for one, row, transition in zip(tokens, rewarded, learnt, strict=True):
        own = [token for token, mask in zip(one["input_ids"], one["assistant_masks"], strict=True) if mask]
        assert row["target"] == transition.observation.text
        assert row["target"] in tokenizer.decode(own)
        assert len(row["target"]) <= benchmark.LONGEST
    held_out = {one.task_id for one in read_transitions(runs.folder / "held_out.jsonl")}
    assert held_out
    assert not held_out & {one.task_id for one in [*warm, *learnt]}


def test_the_committed_page_is_of_the_committed_figures():
    path = benchmark.RESULTS
    page = stamps.headed(benchmark.page(read(path)), stamps.read()[path.stem])
    assert path.with_suffix(".md").read_text() == page
