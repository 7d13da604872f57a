"""Safetensors files: read in pieces, from files and indexes, and refused in one line where they are damaged."""

import json

import pytest
import torch
from safetensors.torch import save_file

from wm_plugin.errors import UserError
from wm_plugin.runtime.tensors import pieces, settings_of, tensors_of


def numbers(place, size=3):
    return [number for piece in pieces(place, size) for number in piece.tolist()]


def test_tensors_are_read_in_pieces(tmp_path):
    tensors = {
        "w": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16(),
        "n": torch.tensor([7, -7], dtype=torch.int8),
        "one": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / "mine.safetensors")
    places = tensors_of(tmp_path)
    assert tensors_of(tmp_path / "mine.safetensors") == places
    for name, tensor in tensors.items():
        assert numbers(places[name]) == tensor.reshape(-1).tolist()
    assert (places["w"].size, places["w"].dtype, places["w"].floating, places["n"].floating) == (
        12,
        "BF16",
        True,
        False,
    )
    assert [len(piece) for piece in pieces(places["w"], 5)] == [5, 5, 2]


def test_an_index_of_several_files(tmp_path):
    for number in (1, 2):
        save_file({f"w{number}": torch.full((2,), float(number))}, tmp_path / f"model-{number}.safetensors")
    index = {f"w{number}": f"model-{number}.safetensors" for number in (1, 2)}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for model in (tmp_path, path):
        assert {name: numbers(place) for name, place in tensors_of(model).items()} == {"w1": [1, 1], "w2": [2, 2]}
    for files, words in [
        ({"w1": "model-2.safetensors"}, "'w1' is not in model-2.safetensors, where the index has it"),
        ({"w1": "gone.safetensors"}, "gone.safetensors: there is no such file"),
        ([], "no index of safetensors files"),
    ]:
        path.write_text(json.dumps({"weight_map": files}))
        with pytest.raises(UserError, match=f"^[^\n]*{words}[^\n]*$"):
            tensors_of(tmp_path)


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 7 + b"\x3f", None])
def test_a_damaged_file_is_a_line(tmp_path, data):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3)}, path)
    path.write_bytes(path.read_bytes()[:-4] if data is None else data)
    with pytest.raises(UserError, match=f"^{path}: cannot be read as safetensors [^\n]*$"):
        tensors_of(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "has no safetensors file"),
        (["pytorch_model.bin"], "has no safetensors file"),
        (["adapter_model.safetensors"], "an adapter alone"),
        (["a.safetensors", "b.safetensors"], "has 2 safetensors files but no model.safetensors.index.json"),
    ],
)
def test_a_folder_without_a_model(tmp_path, names, words):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=words):
        tensors_of(tmp_path)


def test_the_config_beside_the_weights(tmp_path):
    assert settings_of(tmp_path) == {}
    for text, values in [('{"a": 1}', {"a": 1}), ("[1]", {}), ("{", {})]:
        (tmp_path / "config.json").write_text(text)
        assert settings_of(tmp_path) == values == settings_of(tmp_path / "model.safetensors")
