"""The recipe of consistency with small world models: what TRL makes of its settings, and a reduced run by its script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trl.scripts.sft import make_parser

from wm_plugin.lab.evaluation.measures import read_result

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes" / "trl" / "run_consistency_tiny.sh"


def parsed(*flags):
    return make_parser().parse_args_and_config(["--config", str(SCRIPT.parent / "consistency_tiny.yaml"), *flags])


def test_stock_trl_reads_the_recipe():
    _, config, model, mixture = parsed()
    (dataset,) = mixture.datasets
    work = "runs/consistency_tiny/textworld/tiny"
    assert (dataset.data_files, config.output_dir) == (f"{work}/rows.parquet", f"{work}/trained")
    assert (model.model_name_or_path, model.dtype) == (f"{work}/start", "float32")
    assert (config.max_length, config.max_steps, config.use_cpu, config.bf16) == (4096, 300, True, False)
    larger = [
        "--per_device_train_batch_size",
        "1",
        "--learning_rate",
        "2.0e-4",
        "--adam_beta2",
        "0.999",
        "--max_steps",
        "14",
    ]
    _, config, _, _ = parsed(*larger, "--gradient_accumulation_steps", "4", "--warmup_steps", "2", "--seed", "3")
    assert (config.per_device_train_batch_size, config.learning_rate, config.max_steps, config.seed) == (1, 2e-4, 14, 3)


@pytest.mark.nightly
def test_a_reduced_run_ends_in_two_evaluations_and_a_table(tmp_path):
    """Also that the same command has nothing left to do."""
    pytest.importorskip("textworld")
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(ROOT)
    variables.pop("SEED", None)
    command = [SCRIPT, "--quick", "textworld", "tiny"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" not in done.stdout
    runs = tmp_path / "runs" / "consistency_tiny_quick"
    for when in ("before", "after"):
        result = read_result(runs / "textworld" / "tiny" / when)
        real = result.measure("real")
        assert (result.name, real.count + real.failed) == ("consistency", 4)  # two agents, a task of each split
        assert result.settings["max_turns"] == 2
    benchmark = [sys.executable, str(ROOT / "benchmarks" / "consistency_tiny.py"), "--runs", str(runs)]
    subprocess.run([*benchmark, "--out", str(tmp_path / "table.json")], env=variables, check=True, timeout=120)
    first, second = json.loads((tmp_path / "table.json").read_text())
    assert (first["when"], second["when"], first["training"]) == ("before", "after", second["training"])
    assert (first["training"]["steps"], first["training"]["rows"]) == (2, 6)
    assert "| textworld | tiny | 0 | after | expert | unseen | " in (tmp_path / "table.md").read_text()
