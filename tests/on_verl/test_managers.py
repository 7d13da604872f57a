"""An agent loop manager of the user's own, by `rollout.agent.agent_loop_manager_class`."""

from pathlib import Path

import pytest

pytest.importorskip("verl")

from on_verl.test_support import AGENT, DATA, stock
from support.run_on_verl import run_recipe, walking_policy
from wm_plugin.errors import UserError
from wm_plugin.verl import support

MANAGER = f"{AGENT}.agent_loop_manager_class"
MANAGERS = "support.verl_tools.managers"
REFUSED = {
    "Silent": "whether its rollouts say which tokens are the environment's is not known; derive it from verl.trainer",
    "Legacy": "which returns its rollouts, and the trainer waits for them in the TransferQueue; derive it from verl.trainer",
    "Incomplete": "which has no generate_sequences; derive it from verl.trainer.ppo.v1.AgentLoopManagerTQ",
    "Missing": "Class 'Missing' not found in module 'support.verl_tools.managers'",
}


def test_one_that_cannot_say_where_tokens_come_from_is_refused_before_ray_starts():
    environment = ["wm.coeff=0", "wm.environment=grid"]
    for number, (name, message) in enumerate(REFUSED.items()):
        with pytest.raises(UserError, match=message) as error:
            support.check_config(stock(f"+{MANAGER}={MANAGERS}.{name}", *(environment if number % 2 else [])))
        assert str(error.value).startswith(f"{MANAGER} is '{MANAGERS}.{name}'")
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="Failed to import module 'no.such' for agent loop manager"):
        support.check_config(stock(f"+{MANAGER}=no.such.Manager"))
    with pytest.raises(UserError, match="Invalid agent loop manager 'Manager'"):
        support.check_config(stock(f"+{MANAGER}=Manager"))


@pytest.mark.parametrize("name", ["Derived", "Speaking"])
def test_one_that_can_may_start(name):
    support.check_config(stock(f"+{MANAGER}={MANAGERS}.{name}"))


def test_at_coefficient_0_the_managers_are_verls_own_matter():
    support.check_config(stock(f"+{MANAGER}={MANAGERS}.Silent", "wm.coeff=0"))


@pytest.mark.nightly
def test_rollouts_of_a_users_manager_and_loop_are_trained_on(tmp_path):
    """By verl's main_ppo. Neither is ours: all that is known of the environment's tokens is env_spans."""
    walking_policy(tmp_path / "runs" / "tiny_random")
    run = run_recipe(
        "echo_grpo_tiny",
        tmp_path,
        f"+{MANAGER}={MANAGERS}.Speaking",
        f"{AGENT}.agent_loop_config_path={DATA}/spans_loops.yaml",
        f"{AGENT}.default_agent_loop=spans",
        "trainer.total_training_steps=1",
        timeout=900,
        environment={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert run.code == 0, run.output[-5000:]
    assert "a manager of the user's own sends" in run.output
    assert len(run.steps) == 1
    assert min(run.series("echo/tokens")) > 0
    assert min(run.series("echo/tool/move/tokens")) == min(run.series("echo/tokens"))
