"""`wm data easy` as it is run: a filter model trained by TRL, K predictions of it, a kill, and a share that is solved for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl")

from support.predictions import PROMPTS, grid_transitions, save_tiny
from support.scripts import flags
from wm_plugin.data.transitions import read_transitions
from wm_plugin.data.write import write_transitions

ROOT = Path(__file__).parents[2]


def command(folder, work):
    fields = {"out": folder / f"{work}.jsonl", "model": folder / "base", "prompts": folder / "short.yaml"}
    fields |= {"work": folder / work, "reward": "support.predictions:cells", "filter-share": 0.5, "shard-size": 12}
    fields |= {"target-easy-share": 0.3, "learning-rate": 3e-3, "epochs": 30, "train-batch-size": 16}
    verb = [sys.executable, "-m", "wm_plugin", "data", "easy", str(folder / "grid.jsonl"), "--json"]
    return [*verb, *flags(**fields, **{"max-new-tokens": 80})]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "predictions").iterdir())}


@pytest.mark.nightly
def test_the_filter_from_base_model_to_file(tmp_path):
    transitions = grid_transitions(40)
    write_transitions(transitions, tmp_path / "grid.jsonl")
    (tmp_path / "short.yaml").write_text(PROMPTS)
    save_tiny(tmp_path / "base")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}

    def start(work):
        return subprocess.Popen(
            command(tmp_path, work), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    whole = start("whole")
    printed, errors = whole.communicate()
    assert whole.returncode == 0, errors
    result = json.loads(printed)
    assert result["trained_on"] + result["predicted"] == result["transitions"] == len(transitions)
    assert result["trained_on"] > 0
    assert result["malformed"] < 0.5 * 10 * result["predicted"]  # the filter has learnt the form at least
    scored = [json.loads(line) for line in (tmp_path / "whole.easy.jsonl").read_text().splitlines()]
    best = sorted(min(row["distances"]) for row in scored)
    shares = [sum(value < threshold for value in best) / len(best) for threshold in {*best, 1.0}]
    assert abs(result["easy_share"] - 0.3) == pytest.approx(min(abs(share - 0.3) for share in shares))
    assert 0 < result["easy_share"] < 1
    assert result["kept"] + result["dropped"] == result["predicted"]
    assert sum(1 for _ in read_transitions(tmp_path / "whole.jsonl")) == result["kept"]

    killed = start("killed")
    shards = tmp_path / "killed" / "predictions"
    while killed.poll() is None and len(list(shards.glob("predictions-*"))) < 2:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert len(list(shards.glob("predictions-*"))) < len(files(tmp_path / "whole")) - 1
    trained = (tmp_path / "killed" / "filter" / "training.json").stat().st_mtime_ns
    resumed = start("killed")
    printed, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert (tmp_path / "killed" / "filter" / "training.json").stat().st_mtime_ns == trained
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert json.loads(printed) | {"out": "", "scores": ""} == result | {"out": "", "scores": ""}
