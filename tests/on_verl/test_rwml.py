"""RWML on stock verl: every recipe fits, and the reward is on the prediction."""

from pathlib import Path

import pytest

pytest.importorskip("verl")

import yaml
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import config as verl_config

from support.run_on_verl import run_recipe
from support.rwml import check_pipeline, train_by_verl
from support.scripts import calls_of
from support.verl_recipes import composed, unknown_keys
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.verl.config import read_config
from wm_plugin.verl.rewards import BatchedRewardManager
from wm_plugin.verl.sampler import reward_sampler

RECIPES = Path(__file__).parents[2] / "recipes" / "verl"
# of each world: the model, completions a prompt, and the distance below which a prediction is right
WORLDS = {"alfworld": ("Qwen/Qwen2.5-7B-Instruct", 8, 0.2), "tau2": ("Qwen/Qwen3-8B", 16, 0.4)}
FULL = [f"rwml_{world}_{algorithm}" for world in WORLDS for algorithm in ("grpo", "gspo")]
TINY = ["rwml_grpo_tiny", "rwml_gspo_tiny"]
NAMES = [*FULL, *TINY]
ACCURACY = "val-core/wm_rwml/acc/mean@1"


def test_these_are_all():
    found = {path.stem for path in RECIPES.glob("rwml_*.yaml")}
    assert found == {*NAMES, "rwml_sft_tiny", "rwml_tiny_cpu"}  # and rwml.yaml, which they share


@pytest.mark.parametrize("name", [*NAMES, "rwml", "rwml_tiny_cpu"])
def test_every_key_exists(name):
    known = composed("ppo_trainer", module="verl.trainer.config")
    assert not list(unknown_keys(yaml.safe_load((RECIPES / f"{name}.yaml").read_text()), known))


@pytest.mark.parametrize("name", NAMES)
def test_verl_and_the_plugin_accept_the_config(name, policy):
    config = composed(name, f"actor_rollout_ref.model.path={policy}")
    verl_config.validate_config(config, need_reference_policy(config), need_critic(config))
    assert not read_config(config).objective.active
    assert config.trainer.v1.trainer_mode == "sync"  # verl's own
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent"
    assert (config.actor_rollout_ref.actor.policy_loss.loss_mode == "gspo") == ("gspo" in name)
    assert config.trainer.v1.sampler.custom_sampler.name == reward_sampler.__name__
    assert config.reward.num_workers == 1
    manager = BatchedRewardManager(config, make_tokenizer())
    reward = manager.batcher.reward.function
    threshold = WORLDS[name.split("_")[1]][2] if name in FULL else 0.2
    assert (reward.tag, reward.rouge.step, reward.embedding.threshold) == ("next_state", 0.2, threshold)


@pytest.mark.parametrize("name", FULL)
def test_the_constants_of_the_paper(name):
    config = composed(name)
    actor = config.actor_rollout_ref.actor
    model, group, threshold = WORLDS[name.split("_")[1]]
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (32, group)
    assert config.actor_rollout_ref.model.path == model
    assert (actor.optim.lr, config.trainer.total_epochs) == (1e-6, 2)
    assert (actor.loss_agg_mode, actor.use_kl_loss, actor.optim.lr_scheduler_type) == (
        "seq-mean-token-mean",
        False,
        "constant",
    )
    kwargs = config.wm.reward.kwargs
    assert (kwargs.model, kwargs.threshold) == ("Qwen/Qwen3-Embedding-8B", threshold)
    assert config.algorithm.norm_adv_by_std_in_grpo


@pytest.mark.parametrize("name", FULL)
def test_trl_has_the_same_settings(name):
    """Each host has a file of its own, and both are RWML."""
    config = composed(name)
    trl = yaml.safe_load((RECIPES.parent / "trl" / f"{name}.yaml").read_text())
    (reward,) = trl["rewards"]
    assert reward["kwargs"] == OmegaConf.to_container(config.wm.reward.kwargs)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert (trl["model_name_or_path"], trl["num_generations"]) == (config.actor_rollout_ref.model.path, rollout.n)
    completions = trl["per_device_train_batch_size"] * 8 * trl["gradient_accumulation_steps"]
    assert completions == config.data.train_batch_size * rollout.n
    assert (trl["learning_rate"], trl["lr_scheduler_type"]) == (actor.optim.lr, actor.optim.lr_scheduler_type)
    assert (trl["num_train_epochs"], trl["temperature"]) == (config.trainer.total_epochs, rollout.temperature)
    assert trl["max_completion_length"] == config.data.max_response_length
    assert trl["vllm_max_model_length"] == config.data.max_prompt_length + config.data.max_response_length
    if "gspo" in name:
        assert (trl["epsilon"], trl["epsilon_high"]) == (actor.clip_ratio_low, actor.clip_ratio_high)


@pytest.mark.parametrize("name", [*TINY, "rwml_sft_tiny"])  # tests/test_pipelines.py has the others
def test_the_script_builds_what_the_recipe_reads(name, tmp_path):
    own = "trainer.logger=[console, file]"
    *preparations, last = calls_of(RECIPES / f"run_{name}.sh", tmp_path, own, TRAJECTORIES="mine.jsonl")
    module = "sft_trainer" if "sft" in name else "main_ppo"
    ours = ["--config-path", "pkg://wm_plugin.recipes.verl", "--config-name", name, own]
    assert last[last.index("-m") :] == ["-m", f"verl.trainer.{module}", *ours]
    built = {call[call.index("--out") + 1]: call[call.index("--as") + 1] for call in preparations if "build" in call}
    config = composed(name)
    if "sft" in name:
        assert built[config.data.train_files] == "rwml-sft"
        assert config.model.path == "runs/rwml_tiny/random"
    else:
        assert {built[config.data.train_files], built[config.data.val_files]} == {"rwml"}
    if name in TINY:
        sft = composed("rwml_sft_tiny").trainer
        start = f"{sft.default_local_dir}/global_step_{sft.total_training_steps}/huggingface"
        assert config.actor_rollout_ref.model.path == start


@pytest.mark.nightly
@pytest.mark.timeout(1800)  # two runs of verl, one after the other: WM-SFT, and the reward
def test_the_validation_reward_rises_on_stock_verl(tmp_path):
    """On transitions of databases that nothing was trained on; by more than three standard errors of the paired difference.

    Whole runs are in benchmarks/results/rwml_tiny.md.
    """
    short = ("trainer.total_training_steps=24", "trainer.test_freq=24", "data.val_max_samples=512")
    trained = train_by_verl("gspo", tmp_path, 1, *short)
    assert trained.steps == 24
    assert len(trained.before) == len(trained.after) == 512
    rise, error = trained.rise()
    assert rise > 3 * error, (rise, error)
    first, last = [step[ACCURACY] for step in trained.log if ACCURACY in step]
    assert last - first == pytest.approx(rise)
    for step in trained.log:
        if "actor/grad_norm" in step:
            assert step["actor/grad_norm"] > 0
            assert 0 <= step["wm/rwml/no_prediction"] < 1
            assert 0 < step["wm/rwml/rouge"] <= 1


SHORT = "data.max_response_length=16"  # less than the tags of a prediction have


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_a_world_to_a_trained_model_in_one_command(tmp_path):
    """A step of each trainer: rollouts, filters, the filter model, easy samples, rows, GSPO with validation, and a model on disk.

    That the reward teaches something is shown above, at night.
    """
    small = {"ALGORITHM": "gspo", "SFT_STEPS": "4", "TASKS": "16", "PER_TASK": "2", "TURNS": "6", "K": "2"}
    short = (SHORT, "trainer.total_training_steps=1", "trainer.test_freq=1", "data.val_max_samples=16")
    run = run_recipe("rwml_pipeline_tiny", tmp_path, *short, "data.train_batch_size=8", environment=small, timeout=800)
    assert run.code == 0, run.output[-5000:]
    assert [step[ACCURACY] for step in run.steps if ACCURACY in step] == [0, 0]
    (step,) = [step for step in run.steps if "actor/grad_norm" in step]
    assert step["wm/rwml/no_prediction"] == 1
    work = tmp_path / "runs" / "rwml_pipeline_tiny"
    check_pipeline(work, work / "train.parquet")
    (trained,) = work.glob("verl/global_step_1/actor/huggingface/*.safetensors")
    assert trained.stat().st_size > 100_000
