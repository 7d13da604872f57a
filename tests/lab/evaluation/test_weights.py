"""The share of changed weights by hand."""

import json

import pytest
import torch

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import weights
from wm_plugin.lab.evaluation.weights import changes, evaluation, pair

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64"}


def save(folder, tensors, settings=None):
    """A model's folder, written without the library."""
    folder.mkdir()
    entries, data = {}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


def run(tmp_path, before, after, *settings):
    one, other = settings or (None, None)
    first, second = save(tmp_path / "before", before, one), save(tmp_path / "after", after, other)
    pairs = pair(first, second)
    return evaluation(changes(pairs), pairs, "before", "after")


def values(result, by):
    return {one.group: (one.value, one.count) for one in result.measures if one.by == by}


def test_the_definition(tmp_path):
    inf, nan = float("inf"), float("nan")
    #   same, below eta, above, sign, zero before, zero after, both zero, not finite in one or both
    before = [1.0, 1.0, 1.0, 2.0, 0.0, 1.0, 0.0, inf, nan, 1.0, inf, 1.0]
    after = [1.0, 1.0009, 1.0011, -2.0, 1.0, 0.0, 0.0, 1.0, 1.0, nan, inf, -inf]
    result = run(tmp_path, {"w": torch.tensor(before)}, {"w": torch.tensor(after)})
    assert values(result, "") == {"": (2 / 4, 4)}
    assert result.failures == {"weights: zero or not finite": 8}
    # the same from the formula, in Python's numbers
    finite = [(w, v) for w, v in zip(before, after, strict=True) if w * v not in (0, inf, -inf) and w * v == w * v]
    assert sum(abs(v - w) > 1e-3 * max(abs(v), abs(w)) for w, v in finite) == 2


def test_small_and_large_numbers(tmp_path):
    before = torch.tensor([1e-30, 1e-30, 3e38, 3e38])
    result = run(tmp_path, {"w": before}, {"w": before * torch.tensor([1.0, 1.5, 1.0, -1.0])})
    assert values(result, "") == {"": (0.5, 4)}


def test_layers_modules_and_both(tmp_path):
    names = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.mlp.experts.3.up_proj.weight",
        "model.norm.weight",
    ]
    before = {name: torch.ones(4) for name in names}
    after = {
        name: torch.tensor([1.0] * (4 - changed) + [2.0] * changed)
        for changed, name in zip((0, 1, 2, 3, 4, 0), names, strict=True)
    }
    result = run(tmp_path, before, after)
    assert values(result, "") == {"": (10 / 24, 24)}
    assert values(result, "layer") == {"0": (3 / 8, 8), "1": (7 / 8, 8)}
    assert values(result, "module") == {
        "embed_tokens": (0.0, 4),
        "self_attn.q_proj": (6 / 12, 12),
        "mlp.experts.up_proj": (1.0, 4),
        "norm": (0.0, 4),
    }
    both = {"0/self_attn.q_proj": (3 / 8, 8), "1/self_attn.q_proj": (3 / 4, 4), "1/mlp.experts.up_proj": (1.0, 4)}
    assert values(result, "layer/module") == both


def test_several_stacks_of_layers(tmp_path):
    tensors = {f"model.layers.{n}.w.weight": torch.ones(1) for n in range(3)} | {
        "visual.blocks.0.w.weight": torch.ones(1)
    }
    assert list(values(run(tmp_path, tensors, tensors), "layer")) == ["0", "1", "2", "visual.blocks.0"]


def test_pieces_give_what_the_whole_gives(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(37, generator=generator)
    after = before * torch.where(torch.rand(37, generator=generator) < 0.5, 1.0, 1.01)
    expected = float((before != after).float().mean())
    for number, (piece, part) in enumerate([(1 << 22, 1 << 17), (8, 3), (1, 1)]):
        monkeypatch.setattr(weights, "_PIECE", piece)
        monkeypatch.setattr(weights, "_SLICE", part)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert run(folder, {"w": before}, {"w": after}).measure("changed").value == pytest.approx(expected)


def test_a_model_in_another_precision_has_not_changed(tmp_path):
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for number, (one, other) in enumerate([(w, w.bfloat16()), (w.bfloat16(), w), (w.double(), w.bfloat16())]):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run(folder, {"w": one}, {"w": other})
        assert result.measure("changed").value == 0
        assert result.notes == ["1 tensors are stored in different precision, and were compared in the lower one"]


def test_double_precision_is_kept(tmp_path):
    one = torch.tensor([1.0, 1.0], dtype=torch.float64)
    result = run(tmp_path, {"w": one}, {"w": one * torch.tensor([1.0010010001, 1.0010010011], dtype=torch.float64)})
    # η·ŵ is 0.0010010010001 and 0.0010010010011
    assert result.measure("changed").value == 0.5


def test_what_is_not_compared_is_said(tmp_path):
    shared = {"w": torch.ones(2)}
    before = shared | {"gone": torch.ones(1), "shape": torch.ones(2, 3), "count": torch.ones(2, dtype=torch.int64)}
    after = shared | {"new": torch.ones(1), "shape": torch.ones(3, 3), "count": torch.ones(2, dtype=torch.int64)}
    result = run(tmp_path, before, after)
    assert result.measure("changed").count == 2
    assert result.notes == [
        "not compared, only before: gone",
        "not compared, only after: new",
        "not compared, another shape: shape",
        "not compared, no floating-point numbers: count",
    ]
    assert result.failures["tensors: another shape"] == 1


E, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ONE, TWO = torch.ones(2), torch.tensor([1.0, 2.0])
TIED, OWN = {"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": False}}


@pytest.mark.parametrize(
    ("before", "after", "settings", "expected"),
    [
        pytest.param({E: ONE}, {E: TWO, HEAD: TWO}, (TIED, TIED), (1 / 2, 2), id="stored twice: counted once"),
        pytest.param({E: ONE}, {E: ONE, HEAD: TWO}, (TIED, OWN), (1 / 4, 4), id="untied by the training"),
        pytest.param({E: ONE, HEAD: ONE}, {E: TWO}, (OWN, TIED), (2 / 4, 4), id="tied by the training"),
        pytest.param({E: ONE, HEAD: ONE}, {E: TWO, HEAD: TWO}, ({}, None), (2 / 4, 4), id="untied"),
        pytest.param({E: ONE}, {E: TWO}, (None, None), (1 / 2, 2), id="tied"),
    ],
)
def test_an_output_layer_that_is_tied(tmp_path, before, after, settings, expected):
    result = run(tmp_path, before, after, *settings)
    assert (result.measure("changed").value, result.measure("changed").count) == expected
    assert not result.notes


def test_models_that_are_no_pair(tmp_path):
    with pytest.raises(UserError, match="have no tensor in common"):
        run(tmp_path, {"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_weights_of_which_none_counts(tmp_path):
    measure = run(tmp_path, {"w": torch.zeros(2)}, {"w": torch.ones(2)}).measure("changed")
    assert (measure.value, measure.count) == (None, 0)
