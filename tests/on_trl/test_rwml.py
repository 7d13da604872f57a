"""RWML by its recipes: a reward on predictions of real transitions, in GRPO and in GSPO."""

import json
from pathlib import Path

import pytest
import yaml

from support.rwml import train_by_trl
from wm_plugin.samples.build import build
from wm_plugin.tiny.__main__ import main as make_policy
from wm_plugin.tiny.rollouts import main as make_rollouts
from wm_plugin.trl import train
from wm_plugin.trl.rewards import reward_functions

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
FULL, TINY = ["rwml_grpo", "rwml_gspo"], ["rwml_grpo_tiny", "rwml_gspo_tiny"]
ON_CPU = ["--use_cpu", "true", "--bf16", "false", "--use_vllm", "false"]


def parsed(name, *flags):
    return train.parse(["--config", str(RECIPES / f"{name}.yaml"), *ON_CPU, *flags])


@pytest.mark.parametrize("name", FULL)
def test_the_constants_of_the_paper(name):
    script, config, model, _ = parsed(name)
    assert (config.learning_rate, config.num_train_epochs, config.num_generations) == (1e-6, 2, 16)
    assert config.per_device_train_batch_size * 8 * config.gradient_accumulation_steps == 32 * config.num_generations
    assert model.model_name_or_path == "Qwen/Qwen2.5-7B-Instruct"
    assert config.importance_sampling_level == ("sequence" if "gspo" in name else "token")
    (block,) = script.rewards
    assert block["kwargs"]["threshold"] == 0.4
    (function,) = reward_functions(script.rewards)
    assert function.reward.rouge.step == 0.2
    assert function.reward.tag == "next_state"


@pytest.mark.parametrize("name", [*FULL, *TINY])
def test_the_recipes_of_a_size_differ_in_what_gspo_is(name):
    """And nothing of a recipe is a term on environment tokens, which a single turn does not have."""
    _, config, _, _ = parsed(name)
    assert config.echo_coeff == 0
    of_gspo = {"output_dir", "loss_type", "importance_sampling_level", "epsilon", "epsilon_high"}
    one, other = (yaml.safe_load((RECIPES / f"{n}.yaml").read_text()) for n in (name, name.replace("gspo", "grpo")))
    assert {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} <= of_gspo


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_recipes_train(name, tmp_path, monkeypatch, capsys):
    """Two steps from random weights, with evaluation on held-out databases."""
    monkeypatch.chdir(tmp_path)
    make_policy(["--out", "runs/rwml_sft_tiny", "--random", "--texts"])
    Path("runs/rwml_tiny/data").mkdir(parents=True)
    for split, flags in (("train", []), ("test", ["--held-out"])):
        make_rollouts(["--out", "rollouts.jsonl", "--environment", "sql", "--count", "4", *flags])
        prompts = str(RECIPES / "rwml_tiny_prompts.yaml")
        build("rollouts.jsonl", "rwml", "trl", f"runs/rwml_tiny/data/{split}.jsonl", prompts=prompts)
    flags = [
        "--max_steps",
        "2",
        "--eval_steps",
        "2",
        "--max_completion_length",
        "8",
        "--per_device_eval_batch_size",
        "12",
    ]
    flags += ["--per_device_train_batch_size", "8", "--num_generations", "8", "--eval_on_start", "false"]
    trainer, _ = train.build(["--config", str(RECIPES / f"{name}.yaml"), *flags])
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    (evaluated,) = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert len(steps) == 2
    assert steps[0]["wm/rwml/no_prediction"] == evaluated["eval_wm/rwml/no_prediction"] == 1.0  # random characters
    assert evaluated["eval_reward"] == evaluated["eval_rewards/rwml/mean"] == 0.0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_validation_reward_rises(tmp_path):
    """On transitions of databases that nothing was trained on; by more than four standard errors of the paired difference.

    GSPO and other seeds are in benchmarks/results/rwml_tiny.md.
    """
    trained = train_by_trl("grpo", tmp_path, 1, "--disable_tqdm", "true")
    assert trained.steps == 40
    assert len(trained.before) == len(trained.after) > 1000
    rise, error = trained.rise()
    assert rise > 4 * error, (rise, error)
    evaluated = [row["eval_reward"] for row in trained.log if "eval_reward" in row]
    assert evaluated[-1] - evaluated[0] == pytest.approx(
        rise, abs=0.02
    )  # means of batches, of which the last is smaller


def test_a_dataset_without_what_the_reward_needs_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_policy(["--out", "runs/rwml_sft_tiny", "--random", "--texts"])
    Path("data").mkdir()
    row = {"prompt": [{"role": "user", "content": "look"}], "target": "a room", "observers": "tool"}
    Path("data/train.jsonl").write_text(json.dumps(row) + "\n")
    flags = [
        "--dataset_name",
        "data",
        "--eval_strategy",
        "no",
        "--eval_on_start",
        "false",
        "--max_completion_length",
        "2",
    ]
    arguments = [
        "--config",
        str(RECIPES / "rwml_grpo_tiny.yaml"),
        *flags,
        "--per_device_train_batch_size",
        "8",
        "--num_generations",
        "8",
    ]
    assert train.main(arguments) == 2
    line = capsys.readouterr().err.partition("wm train: ")[2]  # after a bar of progress
    assert line.count("\n") == 1
    assert "reward rwml needs the column 'observer'; did you mean" in line
