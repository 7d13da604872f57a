"""verl's main_ppo where vLLM generates, in the environment that `make test-vllm` makes: what it trains on is the term."""

import importlib.util

import pytest

pytest.importorskip("verl")

from support.recorded_on_verl import check_updates, recorded

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
]
ROLLOUT = "actor_rollout_ref.rollout"
VLLM = (
    f"{ROLLOUT}.name=vllm",
    f"+{ROLLOUT}.enable_sleep_mode=false",
    f"{ROLLOUT}.enforce_eager=true",
    f"{ROLLOUT}.free_cache_engine=false",
    f"{ROLLOUT}.max_model_len=512",
)
# memory of the machine is no measure: others use it
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "RAY_memory_monitor_refresh_ms": "0"}
# no episode has a reward, so that the gradient of an update is the term's alone
UNREWARDED = """
from wm_plugin.worlds.grid import GridEnvironment


class Unrewarded(GridEnvironment):
    def get_reward(self):
        return 0.0
"""


def test_main_ppo_trains_on_what_plain_transformers_makes_of_it(tmp_path):
    (tmp_path / "worlds.py").write_text(UNREWARDED)
    run, *written = recorded(
        tmp_path,
        *VLLM,
        "wm.environment=worlds:Unrewarded",
        "trainer.total_training_steps=2",
        environment=ENVIRONMENT,
    )
    assert run.series("wm/lost") == [0, 0]
    assert run.series("training/rollout_probs_diff_valid") == [1, 1]
    assert (
        max(run.series("training/rollout_probs_diff_max")) < 0.01
    )  # the second step by the weights of the first update
    assert run.series("echo/nll")[1] < run.series("echo/nll")[0]
    check_updates(run, *written, updates=1, term_alone=True)
