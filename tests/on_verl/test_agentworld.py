"""Qwen-AgentWorld's recipes on verl."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("verl")

from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import config as verl_config

from support.agreement import read_tokenizer
from support.openai_server import OpenAIServer
from support.run_on_verl import run_recipe
from support.scripts import verl_words
from support.verl_recipes import composed, of_recipe
from wm_plugin.data.building import build
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.lab.tiny.judge import reply
from wm_plugin.verl.config import read_config
from wm_plugin.verl.rewards import BatchedRewardManager

RECIPES = Path(__file__).parents[2] / "recipes" / "verl"
NAMES = ["agentworld_gspo", "agentworld_gspo_tiny"]


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_is_gspo_with_the_rubric_and_rules(name, tmp_path):
    tiny(["--out", str(tmp_path / "policy"), "--random", "--texts"])
    made = of_recipe(name, f"actor_rollout_ref.model.path={tmp_path / 'policy'}")
    verl_config.validate_config(made, need_reference_policy(made), need_critic(made))
    assert not read_config(made).objective.active
    actor = made.actor_rollout_ref.actor
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == ("gspo", "seq-mean-token-mean")
    reward = BatchedRewardManager(made, read_tokenizer()).batcher.reward.function
    assert (reward.weights, reward.scale) == ((9.0, 1.0), "paper")  # the paper's
    assert made.reward.num_workers == 1
    if "tiny" not in name:
        assert reward.tag == "predicted_observation"
        assert actor.ppo_max_token_len_per_gpu >= made.data.max_prompt_length + made.data.max_response_length
        assert made.wm.reward_batch > made.wm.reward.kwargs.rubric.server.concurrency


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_rules_that_contradict_the_training_files_stop_the_run_before_ray(suffix, tmp_path, capsys):
    tiny(["--out", str(tmp_path / "policy"), "--random", "--texts"])
    tiny(["rollouts", "--out", str(tmp_path / "rollouts.jsonl"), "--environment", "sql", "--count", "20"])
    rows = tmp_path / f"rows{suffix}"
    prompts = str(RECIPES.parent / "trl" / "rwml_tiny_prompts.yaml")
    build(tmp_path / "rollouts.jsonl", "agentworld", "verl", rows, prompts=prompts, domain="mcp")
    settings = (f"actor_rollout_ref.model.path={tmp_path / 'policy'}", f"data.train_files=[{rows}]")

    def checked(*rule):
        made = composed(*verl_words("agentworld_gspo_tiny", *settings, *rule))
        verl_config.validate_config(made, need_reference_policy(made), need_critic(made))
        return capsys.readouterr().err

    rules = "wm.reward.kwargs.rules.verifier"
    assert "wm: " not in checked()
    assert "wm: rules: the verifiers hold for " in checked(f"{rules}={{error: false}}")
    with pytest.raises(UserError, match="hold for 0 of 20 real observations"):
        checked(f"""{rules}='{{"regex": "^[0-9]"}}'""")


@pytest.mark.slow
def test_the_tiny_recipe_trains_with_a_judge_and_ends_with_one_line_where_it_fails_too_often(tmp_path):
    """By the script from random weights, whose whole text is the prediction here: its form is learnt in WM-SFT.

    The judge is the recipe's, in this process: it answers for a validation and the first step, and then fails.
    """
    tiny(["--out", str(tmp_path / "runs/rwml_sft_tiny/model"), "--random", "--texts"])
    tiny(
        ["rollouts", "--out", str(tmp_path / "runs/rwml_tiny/rollouts.jsonl"), "--environment", "sql", "--count", "40"]
    )
    validation, step = 8, 16 * 8  # that are judged
    with OpenAIServer(reply, faults=lambda number: "500" if number >= validation + step else None) as server:
        rubric = f"{{server: {{base_url: '{server.base_url}', model: judge, max_retries: 0}}, max_failure_share: 0.2}}"
        done = run_recipe(
            "agentworld_gspo_tiny",
            tmp_path,
            "data.max_response_length=16",
            f"data.val_max_samples={validation}",
            "trainer.total_training_steps=2",
            "wm.reward.kwargs.tag=''",
            f"++wm.reward.kwargs.rubric={rubric}",
        )
    assert done.code not in (0, -signal.SIGKILL), done.output[-5000:]
    (trained,) = [step for step in done.steps if "actor/grad_norm" in step]
    assert trained["wm/hybrid/judged"] == trained["wm/hybrid/rules/verified"] == 1.0
    assert trained["wm/hybrid/failure_share"] == 0.0
    assert 4.5 <= trained["critic/score/mean"] < 25  # 5 from the rubric at least, where the rule does not hold
    assert 20 <= len(server.bodies) - validation - step < step
    reason = f"UserError: reward hybrid: RubricReward: judge at {server.base_url} failed to judge "
    lines = [line for line in done.output.splitlines() if reason in line]
    assert lines, done.output[-5000:]
    assert lines[-1].endswith("and max_failure_share is 0.2; fix the server, or raise it")
