"""RWML by its recipes: a reward on predictions of real transitions, in GRPO and in GSPO."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rwml_runs import train_by_trl
from support.papers import RWML
from support.rwml import check_pipeline, run_pipeline
from support.scripts import flags, trl_words
from wm_plugin.data.building import build
from wm_plugin.lab.tiny.__main__ import main as tiny
from wm_plugin.trl import train
from wm_plugin.trl.rewards import reward_functions

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
NAMES = [f"rwml_{world}_{algorithm}" for world in RWML for algorithm in ("grpo", "gspo")]
TINY = ["rwml_grpo_tiny", "rwml_gspo_tiny"]
ON_CPU = ["--use_cpu", "true", "--bf16", "false", "--use_vllm", "false"]


def parsed(name):
    return train.parse([*trl_words(name), *ON_CPU])


@pytest.mark.parametrize("name", NAMES)
def test_the_constants_of_the_paper(name):
    script, config, model, _ = parsed(name)
    trained, group, threshold = RWML[name.split("_")[1]]
    assert (config.learning_rate, config.num_train_epochs, config.num_generations) == (1e-6, 2, group)
    assert config.per_device_train_batch_size * 8 * config.gradient_accumulation_steps == 32 * group
    assert (model.model_name_or_path, model.dtype) == (trained, "float32")
    assert config.importance_sampling_level == ("sequence" if "gspo" in name else "token")
    assert (config.loss_type, config.beta, config.temperature) == ("grpo", 0, 1)
    (block,) = script.rewards
    assert (block["kwargs"]["threshold"], block["kwargs"]["model"]) == (threshold, "Qwen/Qwen3-Embedding-8B")
    (function,) = reward_functions(script.rewards)
    assert function.reward.rouge.step == 0.2
    assert function.reward.tag == "next_state"


@pytest.mark.parametrize("name", [*NAMES, *TINY])
def test_the_recipes_of_a_size_differ_in_what_gspo_is(name):
    """And nothing of a recipe is a term on environment tokens, which a single turn does not have."""
    _, config, _, _ = parsed(name)
    assert config.echo_coeff == 0
    of_gspo = {"output_dir", "loss_type", "importance_sampling_level", "epsilon", "epsilon_high"}
    one, other = (vars(parsed(n)[1]) for n in (name, name.replace("gspo", "grpo")))
    assert {key for key, value in one.items() if str(value) != str(other[key])} <= of_gspo | {"run_name"}


@pytest.mark.parametrize("name", TINY)
def test_the_tiny_recipes_train(name, tmp_path, monkeypatch, capsys):
    """Two steps from random weights, with evaluation on held-out databases."""
    monkeypatch.chdir(tmp_path)
    tiny(["--out", "runs/rwml_sft_tiny", "--random", "--texts"])
    Path("runs/rwml_tiny/data").mkdir(parents=True)
    for split, held_out in (("train", []), ("test", ["--held-out"])):
        tiny(["rollouts", "--out", "rollouts.jsonl", "--environment", "sql", "--count", "4", *held_out])
        prompts = str(RECIPES / "rwml_tiny_prompts.yaml")
        build("rollouts.jsonl", "rwml", "trl", f"runs/rwml_tiny/data/{split}.jsonl", prompts=prompts)
    sizes = flags(max_steps=2, eval_steps=2, max_completion_length=8, per_device_eval_batch_size=12)
    sizes += flags(per_device_train_batch_size=8, num_generations=8, eval_on_start="false")
    trainer, _ = train.build([*trl_words(name), "--model_name_or_path", "runs/rwml_sft_tiny", *sizes])
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
    tiny(["--out", "runs/rwml_sft_tiny", "--random", "--texts"])
    Path("data").mkdir()
    row = {"prompt": [{"role": "user", "content": "look"}], "target": "a room", "observers": "tool"}
    Path("data/train.jsonl").write_text(json.dumps(row) + "\n")
    words = flags(
        config=RECIPES / "rwml_grpo_tiny.yaml", dataset_name="data", eval_strategy="no", eval_on_start="false"
    )
    words += flags(max_completion_length=2, per_device_train_batch_size=8, num_generations=8)
    assert train.main(words) == 2
    line = capsys.readouterr().err.partition("wm train: ")[2]  # after a bar of progress
    assert line.count("\n") == 1
    assert "reward rwml needs the column 'observer'; did you mean" in line


@pytest.mark.slow
def test_from_a_world_to_a_trained_model_in_one_command(tmp_path):
    """A few steps of each trainer: rollouts, filters, the filter model, easy samples, rows, GRPO, and a model on disk."""
    done = run_pipeline(tmp_path, "trl", "flags=--max_completion_length,16,--per_device_train_batch_size,16")
    assert done.returncode == 0, done.stderr[-3000:]
    work = tmp_path / "out"
    check_pipeline(work / "s0", work / "s0" / "data" / "train.jsonl")
    before, after = (load_file(work / name / "model" / "model.safetensors") for name in ("s0/filter", "rwml_s0"))
    assert before.keys() == after.keys()
    assert "wm/rwml/no_prediction" in (work / ".pipeline" / "logs" / "train:0.log").read_text()  # its reward was asked
