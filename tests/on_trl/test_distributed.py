"""Two gloo ranks: N counts both, and averaging over ranks does not halve the term."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def two_ranks(tmp_path, **options):
    out = tmp_path / "result.json"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    arguments = [str(TESTS / "support" / "distributed_on_trl.py"), str(out), json.dumps(options)]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    ("fields", "silent_rank", "echo"),
    [
        ({"loss_type": "dapo"}, None, {"turn_information": {"action": 0.3}}),
        ({"loss_type": "grpo", "gradient_accumulation_steps": 1}, 1, {}),
    ],
    ids=["unequal ranks", "a rank without environment tokens"],
)
def test_two_ranks(tmp_path, fields, silent_rank, echo):
    result = two_ranks(tmp_path, echo={"coeff": 0.37, **echo}, fields=fields, silent_rank=silent_rank)
    first, second = result["tokens_by_rank"]
    assert first != second
    assert (second == 0) == (silent_rank == 1)
    assert result["counted"] == result["tokens"] == first + second
    assert result["relative_error"] <= 1e-6
    assert result["same_metrics"]
    assert result["metrics"]["echo/tokens"] == result["tokens"]
    assert result["metrics"]["wm/env/environment_tokens"] == pytest.approx(result["environment_tokens"])
    assert result["metrics"].get("echo/information") == (pytest.approx(0.3) if echo else None)
