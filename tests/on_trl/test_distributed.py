"""Two gloo ranks: N counts both, and averaging over ranks does not halve the term."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]


CASES = {
    "unequal ranks": {
        "fields": {"loss_type": "dapo"},
        "silent_rank": None,
        "echo": {"coeff": 0.37, "turn_information": {"action": 0.3}},
    },
    "a rank without environment tokens": {
        "fields": {"loss_type": "grpo", "gradient_accumulation_steps": 1},
        "silent_rank": 1,
        "echo": {"coeff": 0.37},
    },
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What came out of every case on two ranks: one start of the processes costs more than all of them."""
    out = tmp_path_factory.mktemp("ranks") / "result.json"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    arguments = [str(TESTS / "support" / "distributed_on_trl.py"), str(out), json.dumps([*CASES.values()])]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(out.read_text()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_two_ranks(two_ranks, name):
    result, case = two_ranks[name], CASES[name]
    first, second = result["tokens_by_rank"]
    assert first != second
    assert (second == 0) == (case["silent_rank"] == 1)
    assert result["counted"] == result["tokens"] == first + second
    assert result["relative_error"] <= 1e-6
    assert result["same_metrics"]
    assert result["metrics"]["echo/tokens"] == result["tokens"]
    assert result["metrics"]["wm/env/environment_tokens"] == pytest.approx(result["environment_tokens"])
    information = case["echo"].get("turn_information")
    assert result["metrics"].get("echo/information") == (pytest.approx(0.3) if information else None)
