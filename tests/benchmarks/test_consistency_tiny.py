"""The tables of consistency, by hand."""

import json

import consistency_tiny
import stamps
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result

MEASURES = {
    "real": 0.5,
    "wm": 0.25,
    "w2r": 0.4,
    "cr": 0.8,
    "cr_mean_of_ratios": None,
    "together": 0.1,
    "parting_turn": 3.0,
}


def evaluation(seed=0, **changes):
    values = {**MEASURES, **changes}
    groups = [("", ""), ("agent", "expert"), ("agent, split", "expert, seen"), ("split", "seen"), ("horizon", "5")]
    measures = [
        Measure(name, value, "share", 4, by, group, low=0.1, high=0.9, failed=2, with_failed=0.2)
        for by, group in groups
        for name, value in values.items()
    ]
    settings = {"prompts": "word2world", "world_context": True, "max_turns": 8, "seed": seed, "model": {}}
    data = f"textworld, 3 seen and 3 unseen tasks of seed {seed}"
    return Evaluation("consistency", "m", data, settings, measures, {"wm: cut": 2})


def write(folder, **changes):
    folder.mkdir(parents=True)
    write_result(evaluation(**changes), folder)


def lines(path, *cells):
    return [line for line in path.read_text().splitlines() if line.startswith(f"| {' | '.join(cells)} |")]


def test_a_row_for_each_agent_and_split_and_one_of_the_settings(tmp_path, capsys):
    runs, out = tmp_path / "runs", tmp_path / "out.json"
    write(runs / "textworld_tiny_s0" / "before", cr=None)
    write(runs / "textworld_tiny_s0" / "after")
    write(runs / "scienceworld_135m_s1" / "after", seed=1)
    consistency_tiny.main(["--runs", str(runs), "--out", str(out)])
    records = json.loads(out.read_text())
    assert [tuple(record[name] for name in consistency_tiny.KEY) for record in records] == [
        ("textworld", "tiny", 0, "before"),
        ("textworld", "tiny", 0, "after"),
        ("scienceworld", "135m", 1, "after"),
    ]
    table = out.with_suffix(".md")
    assert len(lines(table, "textworld", "tiny", "0", "after")) == 3  # neither by split alone nor by horizon
    (row,) = lines(table, "textworld", "tiny", "0", "after", "expert", "seen")
    assert row.endswith("| 4 | 2 | 50% | 25% | 20% | 40% | 0.80 [0.10, 0.90] | – | 10% [10%, 90%] | 3 |")
    (row,) = lines(table, "textworld", "tiny", "0", "before", "all", "all")
    assert "| 40% | – | – | 10%" in row
    (row,) = lines(table, "textworld", "tiny", "0", "3 seen and 3 unseen")
    assert "| 8 | yes |" in row


def test_the_committed_table_is_of_the_committed_figures():
    records = json.loads(consistency_tiny.RESULTS.read_text())
    page = stamps.headed(consistency_tiny.table(records), stamps.read()["consistency_tiny"])
    assert consistency_tiny.RESULTS.with_suffix(".md").read_text() == page
