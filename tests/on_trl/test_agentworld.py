"""Qwen-AgentWorld's recipes on TRL."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.openai_server import OpenAIServer, careful
from support.scripts import flags, judges_port, trl_words
from wm_plugin.data import read
from wm_plugin.data.building import build
from wm_plugin.errors import UserError
from wm_plugin.hosting import config_file
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.rewards import RuleReward
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.trl import train
from wm_plugin.trl.rewards import reward_functions

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
NAMES = ["agentworld_gspo", "agentworld_gspo_tiny"]


def parsed(name):
    on_cpu = ["--use_cpu", "true", "--bf16", "false", "--use_vllm", "false"]
    return train.parse([*trl_words(name), *on_cpu])


@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_is_gspo_with_the_rubric_and_rules(name):
    script, config, _, _ = parsed(name)
    assert (config.importance_sampling_level, config.loss_type, config.echo_coeff) == ("sequence", "grpo", 0.0)
    (function,) = reward_functions(train._blocks(script.rewards))
    assert function.reward.weights == (9.0, 1.0)  # the paper's
    assert (function.reward.scale, function.reward.rubric.scale) == ("paper", "paper")
    assert config.output_dir == f"runs/{name}"


def test_the_large_recipe_takes_what_the_model_can_read():
    script, config, model, _ = parsed("agentworld_gspo")
    (block,) = script.rewards
    assert block["kwargs"]["tag"] == "predicted_observation"
    assert config.vllm_max_model_length == 28672 + config.max_completion_length
    assert config.per_device_train_batch_size * 8 * config.gradient_accumulation_steps == 32 * config.num_generations
    assert config.per_device_train_batch_size == config.per_device_eval_batch_size == 1  # of the longest, as on verl
    assert model.model_name_or_path == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_the_tiny_recipe_s_rule_is_true_and_pays_for_nothing_else(host, tmp_path):
    """Of the real observations of its world; a digit in front of a right prediction is not one."""
    tiny(["rollouts", "--out", str(tmp_path / "rollouts.jsonl"), "--environment", "sql", "--count", "300"])
    turns = [turn for one in read(tmp_path / "rollouts.jsonl") for turn in one.turns]
    observed = [observation.text for turn in turns for observation in turn.observations]
    (text,) = re.findall(r"^hybrid='(.*)'$", (RECIPES.parent / host / "run.sh").read_text(), re.M)
    reward = RuleReward(**json.loads(text)["kwargs"]["rules"])
    assert set(reward(observed, observed)) == {1.0}
    kinds = [error_kind(text) for text in observed]
    assert 0 < sum(kind is None for kind in kinds) < len(kinds)
    for guess, kind in (
        ("0 Done.", None),
        ("0 OperationalError: no such table", None),
        ("Error: no such row", "not_found"),
    ):
        assert reward([guess] * len(observed), observed) == [float(one == kind) for one in kinds]


def test_the_tiny_recipe_trains_with_a_judge(tmp_path, monkeypatch):
    """Two steps from random weights, whose whole text is the prediction here: its form is learnt in WM-SFT."""
    monkeypatch.chdir(tmp_path)
    tiny(["--out", "runs/rwml_sft_tiny", "--random", "--texts"])
    Path("runs/agentworld_tiny/data").mkdir(parents=True)
    prompts = str(RECIPES / "rwml_tiny_prompts.yaml")
    for split, held_out in (("train", []), ("test", ["--held-out"])):
        tiny(["rollouts", "--out", "rollouts.jsonl", "--environment", "sql", "--count", "8", *held_out])
        build(
            "rollouts.jsonl",
            "agentworld",
            "trl",
            f"runs/agentworld_tiny/data/{split}.jsonl",
            prompts=prompts,
            domain="mcp",
        )
    script, *_ = parsed("agentworld_gspo_tiny")
    block = json.loads(script.rewards[0])
    config = config_file.read(str(RECIPES / "rwml_grpo_tiny.yaml")) | {"rewards": [block], "loss_type": "grpo"}
    config |= {"dataset_name": "runs/agentworld_tiny/data", "importance_sampling_level": "sequence"}
    with OpenAIServer(careful) as server:
        kwargs = block["kwargs"]
        kwargs["tag"] = ""
        kwargs["rubric"]["server"]["base_url"] = server.base_url
        Path("config.yaml").write_text(yaml.safe_dump(config))
        sizes = {"max_steps": 2, "eval_steps": 2, "max_completion_length": 8, "per_device_eval_batch_size": 8}
        sizes |= {"per_device_train_batch_size": 8, "num_generations": 8, "eval_on_start": "false"}
        size = flags(**sizes)
        kwargs["rules"], truth = {"verifier": {"regex": "^[0-9]"}}, kwargs["rules"]
        Path("wrong.yaml").write_text(yaml.safe_dump(config))
        with pytest.raises(UserError, match="the verifiers hold for 0 of 8 real observations"):
            train.build(["--config", "wrong.yaml", *size])
        kwargs["rules"] = truth
        trainer, _ = train.build(["--config", "config.yaml", *size])
        trainer.train()
        asked = [json.dumps(body) for body in server.bodies]
    steps = [row for row in trainer.state.log_history if "loss" in row]
    (evaluated,) = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert len(steps) == 2
    for row, prefix in ((steps[0], ""), (evaluated, "eval_")):
        assert row[f"{prefix}wm/hybrid/judged"] == 1.0
        assert row[f"{prefix}wm/hybrid/rules/verified"] == 1.0
        assert row[f"{prefix}wm/hybrid/context_cut"] == row[f"{prefix}wm/hybrid/failure_share"] == 0.0
        assert 4.5 <= row[f"{prefix}reward"] < 25  # 5 from the rubric at least, where the rule does not hold
    assert asked
    assert all("run_query" in text and "# This environment: " in text for text in asked)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tiny_recipe_runs_from_rollouts_by_its_script(tmp_path):
    """WM-SFT, rows, the judge and a few steps, in one command."""
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = str(RECIPES.parents[1])
    command = [str(RECIPES / "run.sh"), "agentworld_gspo_tiny", "--steps", "3", "--disable_tqdm", "true", "--json"]
    with judges_port():
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 3
    assert any(row.get("wm/hybrid/judged", 0) > 0.5 for row in result["last"]), result
