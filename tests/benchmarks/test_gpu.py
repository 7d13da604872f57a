"""benchmarks/gpu.py on a CPU with tiny sizes, from folders that gpu_pack.py wrote and that hold all of its code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl")

import gpu
import gpu_pack
from support.small_llama import fields, make_model
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.lab.tiny.pretrained import _tokenizer

pytestmark = pytest.mark.host


@pytest.fixture
def model(tmp_path):
    tokenizer = _tokenizer(fields())
    tokenizer.save_pretrained(tmp_path / "model")
    make_model(len(tokenizer)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_come_back_near_what_they_were_and_within_their_bytes(model, tmp_path):
    tokenizer, real = _tokenizer(fields()), make_model(len(_tokenizer(fields())))
    errors = {}
    for most in (60_000, 40_000):
        notes = gpu_pack.pack_weights(model, tmp_path / "weights.bin", most)
        assert (tmp_path / "weights.bin").stat().st_size <= most
        (tmp_path / "manifest.json").write_text(json.dumps({"weights": notes}))
        back = gpu_pack.load_weights(tmp_path)
        before, after = real.state_dict(), back.state_dict()
        rows = gpu_pack.characters(tokenizer)
        assert torch.equal(after["model.norm.weight"], before["model.norm.weight"])
        for name in ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"):
            wanted = before[name][rows] if "embed" in name else before[name]
            error = (after[name] - wanted).square().sum() / wanted.square().sum()
            assert error < 0.05
            errors.setdefault(name, []).append(float(error))
        assert notes["signal_to_noise_db"] > 13
    assert all(fine < coarse for fine, coarse in errors.values())
    letter = make_tokenizer()("U").input_ids[0]
    assert rows[letter] == tokenizer("U").input_ids[0]


def test_a_folder_that_is_too_large_or_there_already_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_pack, "LIMIT", 1000)
    with pytest.raises(SystemExit, match="more than 1,000"):
        gpu_pack.pack("speed", tmp_path / "speed", wheels=None)
    with pytest.raises(SystemExit, match="is there already"):
        gpu_pack.pack("speed", tmp_path / "speed", wheels=None)
    with pytest.raises(SystemExit, match="needs --model"):
        gpu_pack.pack("table", tmp_path / "table", wheels=None)


def test_a_part_ends_with_its_minutes_and_leaves_what_it_has(tmp_path, monkeypatch, capsys):
    def endless(result, size, options):
        result.add(steps=1)
        while True:
            pass

    monkeypatch.setitem(gpu.PARTS, "speed", endless)
    monkeypatch.setattr("sys.argv", ["gpu.py", "speed", "--tiny", "--out", str(tmp_path), "--minutes", "0.003"])
    assert gpu.main() == 1
    found = json.loads((tmp_path / "speed.json").read_text())
    assert (found["finished"], found["steps"], found["part"]) == (False, 1, "speed")
    assert {"gpu", "versions", "commit", "settings"} <= set(found)
    assert "cut after" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("part", gpu.PARTS)
def test_a_packed_part_runs(part, model, tmp_path):
    """From the folder alone: the run's code is the folder's, not this checkout's."""
    pytest.importorskip("trl", minversion="1.10")
    gpu_pack.pack(part, tmp_path / part, model=model if part == "table" else None, wheels=None)
    (tmp_path / "work").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path / "work")}
    command = ["sh", str(tmp_path / part / "run.sh"), str(tmp_path / "out"), "--tiny"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "out" / f"{part}.json").read_text())
    assert found["finished"]
    assert Path(found["code"]).parent == tmp_path / "work"
    if part == "speed":
        plain = next(row for row in found["arms"] if row["arm"] == "plain")
        assert plain["tokens_a_second"] > 0 < plain["to_stock"]["median"]
        assert found["repeats"] == 2
    elif part == "table":
        assert set(found["arms"]) == {"0", "0.05"}
        for name, arm in found["arms"].items():
            assert [row["step"] for row in arm["steps"]] == [1, 2]
            assert {row["echo/coeff"] for row in arm["logs"]} == {float(name)}
            assert arm["steps"][-1]["env_nll"] > 0
        assert 0 <= found["start"]["success"] <= 1
    else:
        assert [row["at_once"] for row in found["judge"]["rows"]] == [1, 2]
        assert found["embeddings"]["texts_a_second"] > 0


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py", "speed", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "there is no GPU" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
