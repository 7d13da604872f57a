"""The term where vLLM generates, in the environment that `make test-vllm` makes: it is what it is without vLLM."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
]
TESTS = Path(__file__).parents[1]
COLOCATED = {"use_vllm": True, "vllm_mode": "colocate"}
SERVER = {"use_vllm": True, "vllm_mode": "server"}
OFF = {"vllm_importance_sampling_correction": False}
CASES = {
    "without vLLM": {"fields": {}},
    "no correction": {"fields": COLOCATED | OFF},
    **{
        mode: {"fields": COLOCATED | {"vllm_importance_sampling_mode": mode}}
        for mode in ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")
    },
    "vespo": {"fields": COLOCATED | {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"}},
    "GSPO": {"fields": COLOCATED | {"loss_type": "grpo", "importance_sampling_level": "sequence"}},
    "LoRA": {"fields": COLOCATED, "peft": True},
    "server": {"fields": SERVER},
    "server, no correction": {"fields": SERVER | OFF},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What came out of every case: vLLM starts in seconds, its import takes longer."""
    out = tmp_path_factory.mktemp("vllm") / "result.json"
    paths = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # torch's generator, and so the rollouts, are this process's
    }
    command = [sys.executable, str(TESTS / "support/vllm_on_trl.py"), str(out), json.dumps([*CASES.values()])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", CASES)
def test_the_term_is_what_it_is_without_vllm(results, name):
    result = dict(zip(CASES, results["cases"], strict=True))[name]
    assert result["tokens"] == result["counted"]
    assert min(result["tokens"]) > (20 if "server" in name else 100)  # a server draws as it likes
    assert min(result["reward_std"]) > 0  # else there is no policy loss beside the term
    assert max(result["errors"]) <= 1e-6
    assert bool(result["ratios"]) == ("no correction" not in name and name != "without vLLM")
    for low, high in result["ratios"]:
        assert 0.9 < low < high < 1.1  # vLLM computes in float32


@pytest.mark.parametrize("mode", ["colocated", "server"])
def test_the_policy_that_generates_is_the_one_that_is_trained(results, mode):
    moving = results[mode]
    assert moving["moved"] > 0.05
    assert max(moving["apart"]) < 0.02
