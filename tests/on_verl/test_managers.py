"""An agent loop manager of the user's own, by `rollout.agent.agent_loop_manager_class`."""

from pathlib import Path

import pytest

pytest.importorskip("verl")

import numpy as np
from verl.tools.tool_registry import load_all_tools

from on_verl.test_support import AGENT, DATA, stock
from support.agent_loop import call, make_tokenizer, rollout
from support.run_on_verl import run_recipe, walking_policy
from support.verl_tools.answers import rows
from support.verl_tools.managers import SpansLoop
from wm_plugin.errors import UserError
from wm_plugin.tokens.spans import SPAN_FIELD, Origin, Span, read_spans
from wm_plugin.verl import support
from wm_plugin.verl.names import ORIGINS

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


def test_a_loop_that_gives_env_spans_is_weighed_as_ours():
    tokenizer, turns = make_tokenizer(), [call("check_answer", answer="2"), "#### 2"]
    settings = {"tools": load_all_tools(str(DATA / "answers.yaml"), None)}
    settings["row"] = {"tools_kwargs": rows(1)[0]["extra_info"]["tools_kwargs"]}
    ours = rollout(tokenizer, turns, {}, **settings)
    theirs = rollout(tokenizer, turns, {}, cls=SpansLoop, **settings)
    spans = [Origin.unpack(values).span for values in ours.extra_fields[ORIGINS]]
    assert spans
    assert theirs.response_ids == ours.response_ids
    assert [Span(*values) for values in theirs.extra_fields[SPAN_FIELD]] == spans
    assert read_spans(theirs.extra_fields[SPAN_FIELD], np.asarray(theirs.response_mask)) == spans
    assert ORIGINS not in theirs.extra_fields


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
