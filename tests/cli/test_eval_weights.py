"""`wm lab weights` from two folders to a table."""

import json

import pytest

from wm_plugin.lab.evaluation.measures import read_result, read_rows


def save(folder, *numbers):
    """A model of one layer with these weights, which float32 holds."""
    folder.mkdir()
    import array

    data = array.array("f", numbers).tobytes()
    entry = {"dtype": "F32", "shape": [len(numbers)], "data_offsets": [0, len(data)]}
    text = json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(folder)


VERB = ("lab", "weights")


def test_a_table_json_and_a_folder(wm, tmp_path):
    models = ("--before", save(tmp_path / "base", 1, 2, 4, 0), "--model", save(tmp_path / "trained", 1, 2, 5, 3))
    command = (*VERB, *models, "--out", tmp_path / "out")
    result = wm.json(*command)
    assert (result["ok"], result["failures"]) == (True, {"weights: zero or not finite": 1})
    groups = {(one["by"], one["group"]): (one["value"], one["count"]) for one in result["measures"]}
    names = [("", ""), ("layer", "0"), ("module", "mlp.up_proj"), ("layer/module", "0/mlp.up_proj")]
    assert groups == dict.fromkeys(names, (1 / 3, 3))
    assert read_result(tmp_path / "out").as_dict() | {"ok": True} == result
    (row,) = read_rows(tmp_path / "out")
    assert (row["tensor"], row["scores"]) == ("model.layers.0.mlp.up_proj.weight", {"changed": 1 / 3})
    printed = wm.text(*command, "--eta", "0.5")  # a second time, over the first
    assert "changed" in printed
    assert "left out: 1 (weights: zero or not finite)" in printed


def test_nothing_that_counts_is_no_success(wm, tmp_path):
    printed = wm.text(*VERB, "--before", save(tmp_path / "a", 0), "--model", save(tmp_path / "b", 1), code=1)
    assert "\nnothing was measured\n" in printed
    assert "(weights: zero or not finite)" in printed


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model gone", "gone: there is no such file"),
        ("--model base --eta -1", "--eta is -1; write a number >= 0 and <= 1"),
        ("--model base --out mine", "mine: holds files, but no evaluation.json of wm eval"),
        ("--model empty", "empty: has no safetensors file"),
    ],
)
def test_mistakes_are_a_line(wm, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "base", 1)
    for name in ("mine", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert words in wm.error(*VERB, "--before", "base", *flags.split())
