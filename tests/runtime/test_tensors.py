"""Safetensors files by hand: written here byte by byte, read back, and refused where they are damaged."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.runtime.tensors import DTYPES, header, pieces, settings_of, tensors_of


def write(path, entries, data=b"", *, length=None):
    """A file with these header entries and bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def numbers(place, size=3):
    return torch.cat([piece.clone() for piece in pieces(place, size)]).tolist()


def test_tensors_are_read_in_pieces(tmp_path):
    data = (
        torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).numpy().tobytes()
        + torch.tensor([7, -7], dtype=torch.int8).numpy().tobytes()
    )
    entries = {"__metadata__": {"format": "pt"}, "a": entry("F32", [5, 1], 0, 20), "b": entry("I8", [2], 20, 22)}
    places = header(write(tmp_path / "x.safetensors", entries, data))
    assert (numbers(places["a"], 2), numbers(places["b"])) == ([1.0, 2.0, 3.0, 4.0, 5.0], [7, -7])
    assert (places["a"].size, places["a"].floating, places["b"].floating) == (5, True, False)
    assert [len(piece) for piece in pieces(places["a"], 2)] == [2, 2, 1]


def test_a_scalar_and_a_tensor_without_numbers(tmp_path):
    entries = {"one": entry("F64", [], 0, 8), "none": entry("F32", [0, 4], 8, 8)}
    places = header(
        write(tmp_path / "x.safetensors", entries, torch.tensor(2.5, dtype=torch.float64).numpy().tobytes())
    )
    assert numbers(places["one"]) == [2.5]
    assert list(pieces(places["none"], 4)) == []


def test_it_reads_what_the_library_writes(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16(), "n": torch.arange(3)}
    library.save_file(tensors, tmp_path / "model.safetensors")
    places = tensors_of(tmp_path)
    assert numbers(places["w"]) == tensors["w"].reshape(-1).tolist()
    assert numbers(places["n"]) == [0, 1, 2]


def sharded(folder):
    """Two files and their index."""
    for number in (1, 2):
        data = torch.full((2,), float(number)).numpy().tobytes()
        write(folder / f"model-{number}.safetensors", {f"w{number}": entry("F32", [2], 0, 8)}, data)
    index = {"metadata": {}, "weight_map": {f"w{number}": f"model-{number}.safetensors" for number in (1, 2)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_an_index_of_several_files(tmp_path):
    index = sharded(tmp_path)
    for name in (tmp_path, tmp_path / "model.safetensors.index.json"):
        assert {tensor: numbers(place) for tensor, place in tensors_of(name).items()} == {
            "w1": [1.0, 1.0],
            "w2": [2.0, 2.0],
        }
    for files, words in [
        ({"w1": "model-2.safetensors"}, "'w1' is not in model-2.safetensors, where the index has it"),
        ({"w1": "../x.safetensors"}, "'../x.safetensors' is no safetensors file beside the index"),
        ({"w1": 3}, "3 is no safetensors file beside the index"),
        ({"w1": "gone.safetensors"}, "gone.safetensors: cannot be read (No such file or directory)"),
        ([], "no index of safetensors files"),
    ]:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index | {"weight_map": files}))
        with pytest.raises(UserError, match="^[^\n]*$") as error:
            tensors_of(tmp_path)
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (b"[]", "its header is no JSON object"),
        (b"{", "its header is no JSON object"),
        (b'{"a": 1, "a": 2}', "its header is no JSON object"),
        ({"a": 3}, "'a' has no dtype, shape and place"),
        ({"a": entry(4, [2], 0, 8)}, "'a' has no dtype, shape and place"),
        ({"a": entry("F32", [True], 0, 4)}, "'a' has no dtype, shape and place"),
        ({"a": entry("F32", [-1], 0, 4)}, "'a' has no dtype, shape and place"),
        ({"a": entry("F32", [1] * 99, 0, 4)}, "'a' has no dtype, shape and place"),
        ({"a": entry("F32", [10**300], 0, 4)}, "'a' has no dtype, shape and place"),
        ({"a": entry("F32", [3], 0, 12)}, "'a' lies beyond its end"),
        ({"a": entry("F32", [1], 8, 4)}, "'a' lies beyond its end"),
        ({"a": entry("F32", [3], 0, 8)}, "'a' has 8 bytes for the shape [3]"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, "two tensors share bytes"),
    ],
)
def test_a_damaged_file_is_a_line(tmp_path, entries, words):
    path = write(tmp_path / "x.safetensors", entries, b"\0" * 8)
    with pytest.raises(UserError, match="^[^\n]*$") as error:
        tensors_of(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_header_that_says_too_much_is_not_read(tmp_path):
    path = write(tmp_path / "x.safetensors", {}, length=1 << 62)
    with pytest.raises(UserError, match="or only a part of one"):
        tensors_of(path)
    os.truncate(path, 1 << 40)  # takes no room
    with path.open("r+b") as file:
        file.write((1 << 39).to_bytes(8, "little"))
    with pytest.raises(UserError, match="its header is larger than"):
        tensors_of(path)
    path.write_bytes(b"abc")
    with pytest.raises(UserError, match="or only a part of one"):
        tensors_of(path)


def test_a_file_that_shrinks_meanwhile_is_a_line(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": entry("F32", [2], 0, 8)}, b"\0" * 8)
    place = tensors_of(path)["a"]
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(UserError, match="ends in the middle of a tensor"):
        list(pieces(place, 1))


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
        write(tmp_path / name, {})
    with pytest.raises(UserError, match=words):
        tensors_of(tmp_path)


def test_one_file_of_another_name_is_the_model(tmp_path):
    write(tmp_path / "mine.safetensors", {"a": entry("F32", [1], 0, 4)}, b"\0" * 4)
    assert list(tensors_of(tmp_path)) == ["a"]


def test_the_config_beside_the_weights(tmp_path):
    assert settings_of(tmp_path) == {}
    for text, values in [('{"a": 1}', {"a": 1}), ("[1]", {}), ("{", {})]:
        (tmp_path / "config.json").write_text(text)
        assert settings_of(tmp_path) == values == settings_of(tmp_path / "model.safetensors")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="no file"):
        tensors_of(tmp_path / "x.safetensors")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.just(10**300)
    | st.floats()
    | st.sampled_from(["F32", "I8", "X", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), VALUES), st.binary(max_size=40), st.integers(-9, 9))
def test_whatever_a_file_says_is_read_or_refused(entries, data, more):
    text = json.dumps(entries).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x.safetensors", text, data, length=max(0, len(text) + more))
        with suppress(UserError):
            for place in tensors_of(path).values():
                if place.dtype in DTYPES:
                    assert sum(map(len, pieces(place, 3))) == place.size


@settings(max_examples=examples(100), deadline=None)
@given(VALUES)
def test_whatever_an_index_says_is_read_or_refused(value):
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a.safetensors", {"a": entry("F32", [1], 0, 4)}, b"\0" * 4)
        (Path(folder) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": value}))
        with suppress(UserError):
            tensors_of(folder)
