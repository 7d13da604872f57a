import json

import pytest
import torch

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import intervals
from wm_plugin.lab.evaluation.intervals import interval, interval_of_means
from wm_plugin.lab.evaluation.measures import (
    Evaluation,
    Measure,
    open_folder,
    read_result,
    read_rows,
    write_result,
    write_rows,
)

EVALUATION = Evaluation(
    "one-step",
    "model",
    "data.jsonl",
    {"seed": 0},
    [Measure("exact", 0.5, "share", 4, low=0.1, high=0.9), Measure("exact", None, "share", 0, "tool", "search")],
    {"timeout": 1},
    ["A remark."],
)


def test_round_trip(tmp_path):
    write_result(EVALUATION, tmp_path)
    assert read_result(tmp_path) == EVALUATION == read_result(tmp_path / "result.json")
    assert EVALUATION.measure("exact", "tool", "search").count == 0
    with pytest.raises(KeyError):
        EVALUATION.measure("exact", "tool", "other")


def test_numbers_that_are_not_finite_are_null(tmp_path):
    settings = {"a": [float("nan"), 1], "b": {"c": float("inf")}}
    write_result(Evaluation("bench", "m", "d", settings, [Measure("a", float("nan"), "share", 1)]), tmp_path)
    assert read_result(tmp_path).measures[0].value is None
    assert read_result(tmp_path).settings == {"a": [None, 1], "b": {"c": None}}


def test_rows_with_any_text(tmp_path):
    rows = [{"real": "\ud83d half", "predicted": "line\u2028end\n", "scores": {"exact": 1.0}}, {"failure": "timeout"}]
    write_rows(rows, tmp_path)
    assert list(read_rows(tmp_path)) == rows


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"format": "other"}', '{"format": "wm_plugin.evaluation", "version": 1, "name": 1}']
)
def test_other_files_are_one_line(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"result\.json: "):
        read_result(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"name": 1}, {"notes": "text"}, {"settings": None}, {"failures": {"cut": "x"}}, {"measures": [{"name": "a"}]}],
)
def test_fields_of_other_types_are_one_line(tmp_path, change):
    (tmp_path / "result.json").write_text(json.dumps({**EVALUATION.as_dict(), **change}))
    with pytest.raises(UserError, match="damaged"):
        read_result(tmp_path)


def test_a_folder_is_only_ours(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="name another folder"):
        open_folder(tmp_path, "bench", "m", "d")
    folder = open_folder(tmp_path / "new" / "lab", "bench", "m", "d")
    write_result(EVALUATION, folder)
    assert open_folder(folder, "bench", "m", "d") == folder
    with pytest.raises(UserError, match="other settings"):
        open_folder(folder, "bench", "another", "d")
    assert json.loads((folder / "evaluation.json").read_text())["subject"] == "m"


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


def test_numbers_of_rows_that_are_not_finite_are_null(tmp_path):
    write_rows([{"scores": {"nll": float("nan"), "exact": 1.0}, "all": [float("inf"), 2]}], tmp_path)
    text = (tmp_path / "rows.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"scores": {"nll": None, "exact": 1.0}, "all": [None, 2]}
