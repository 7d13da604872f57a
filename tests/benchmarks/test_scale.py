"""benchmarks/SCALE.md is what the results say, and its arithmetic."""

import json

import pytest

import scale


def test_the_page_is_what_the_results_say(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scale.py", "--check"])
    assert scale.main() == 0, capsys.readouterr().out


def test_shares_grow_with_the_rollouts_and_the_largest_is_named():
    pieces = scale.known(json.loads((scale.RESULTS / "scale.json").read_text()))
    one, many = scale.at(1, pieces), scale.at(1000, pieces)
    assert many["columns"] == pytest.approx(1000 * one["columns"])
    assert one["columns"] == pytest.approx(32 * pieces["columns_ms_one"] / 1e3 / 120)
    assert one["columns_bytes"] == pytest.approx(32 * (8192 * 6 + 8))  # float32 and int16 a token, int64 a row
    slow = {**pieces, "columns_ms_one": 1e6}
    assert scale.first(scale.at(8, slow)) == "columns"
    assert "of ours columns" in scale.advice(scale.at(8, slow))


def test_another_result_makes_another_page():
    result = json.loads((scale.RESULTS / "scale.json").read_text())
    before = scale.page(result)
    result["pieces"]["columns_ms_one"] *= 2
    assert scale.page(result) != before
