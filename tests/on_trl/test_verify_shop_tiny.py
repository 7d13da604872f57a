"""The recipe of a careless shopper under checks: what TRL makes of its settings, and a reduced run by its script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trl.scripts.sft import make_parser

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes" / "trl" / "run_verify_shop_tiny.sh"


def test_stock_trl_reads_the_recipe():
    flags = ["--config", str(SCRIPT.parent / "verify_shop_tiny.yaml"), "--max_steps", "2"]
    _, config, model, mixture = make_parser().parse_args_and_config(flags)
    (dataset,) = mixture.datasets
    work = "runs/verify_shop_tiny"
    assert (dataset.data_files, config.output_dir) == (f"{work}/rows.parquet", f"{work}/trained")
    assert (model.model_name_or_path, model.dtype) == (f"{work}/start", "float32")
    assert (config.max_length, config.max_steps, config.use_cpu, config.bf16) == (4096, 2, True, False)


@pytest.mark.nightly
def test_a_reduced_run_ends_in_a_table(tmp_path):
    """Also that the same command has nothing left to do but the table."""
    pytest.importorskip("bm25s")
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(ROOT)
    for name in ("SEED", "WORLD_MODEL", "WORLD_MODEL_URL"):
        variables.pop(name, None)
    for _ in range(2):
        done = subprocess.run(
            [SCRIPT, "--quick"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert "train_loss" not in done.stdout
    folder = tmp_path / "runs" / "verify_shop_tiny_quick"
    rows = json.loads((folder / "table.json").read_text())["rows"]
    named = [(row["adviser"], row["budget"]) for row in rows]
    assert named == [("none", 0), ("model", 2), ("refuse", 2), ("coin", 2), ("oracle", 2)]
    assert {row["episodes"] for row in rows} == {2}
    assert [row["checks"] > 0 for row in rows] == [False, True, True, True, True]
    assert (folder / "table.md").read_text() == done.stdout
