"""The table of the arms: means over seeds, intervals by hand, differences paired by seed; and nothing that was not measured."""

import json

import pytest

import sim_table
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, open_folder, write_result

pytestmark = pytest.mark.host
FIGURES = {"turns": 5.0, "env_nll": 0.1, "exact": 0.5}


def put(folder, name, success, step=15):
    where = open_folder(folder / name, sim_table.EVALUATION, name, "boards")
    measures = [
        Measure(figure, value, sim_table.UNITS[figure], 8) for figure, value in {"success": success, **FIGURES}.items()
    ]
    write_result(Evaluation(sim_table.EVALUATION, name, "boards", {"step": step}, measures), where)


def test_means_intervals_and_differences_are_those_by_hand(tmp_path, capsys):
    put(tmp_path / "e", "start", 0.25, step=0)
    for seed, (real, sim) in enumerate(((0.4, 0.5), (0.5, 0.5), (0.6, 0.8))):
        put(tmp_path / "e", f"real_s{seed}", real)
        put(tmp_path / "e", f"sim_s{seed}", sim)
    out = tmp_path / "table.json"
    assert sim_table.main([str(tmp_path / "e"), "--out", str(out)]) == 0
    start, real, sim = json.loads(out.read_text())["arms"]
    assert [row["arm"] for row in (start, real, sim)] == ["start", "real", "sim"]
    # Student's t with two degrees of freedom, 4.303, of the values 0.4, 0.5, 0.6
    half = 4.303 * 0.1 / 3**0.5
    assert (real["success"]["low"], real["success"]["high"]) == pytest.approx((0.5 - half, 0.5 + half))
    assert sim["against_real"]["success"]["values"] == pytest.approx([0.1, 0.0, 0.2])
    assert "against_real" not in real
    assert start["success"]["low"] is None
    shown = capsys.readouterr().out
    assert shown == out.with_suffix(".md").read_text()
    assert "| start | – | 0 | 0.250 | 0.100 | 0.500 | – |" in shown
    assert "| sim | 3 | 15 | 0.600 [" in shown
    assert "mixed" not in shown
