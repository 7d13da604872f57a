"""RWML on stock verl: every recipe fits, and the reward is on the prediction."""

import json

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import config as verl_config

from rwml_runs import train_by_verl
from support.papers import RWML
from support.rwml import check_pipeline, run_pipeline
from support.scripts import RECIPES
from support.verl_recipes import of_recipe
from wm_plugin.hosting import config_file
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.verl.config import read_config
from wm_plugin.verl.rewards import BatchedRewardManager
from wm_plugin.verl.sampler import reward_sampler

FULL = [f"rwml_{world}_{algorithm}" for world in RWML for algorithm in ("grpo", "gspo")]
TINY = ["rwml_grpo_tiny", "rwml_gspo_tiny"]
NAMES = [*FULL, *TINY]
ACCURACY = "val-core/wm_rwml/acc/mean@1"


@pytest.mark.parametrize("name", NAMES)
def test_verl_and_the_plugin_accept_the_config(name, policy):
    config = of_recipe(name, f"actor_rollout_ref.model.path={policy}")
    verl_config.validate_config(config, need_reference_policy(config), need_critic(config))
    assert not read_config(config).objective.active
    assert config.trainer.v1.trainer_mode == "sync"  # verl's own
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent"
    assert (config.actor_rollout_ref.actor.policy_loss.loss_mode == "gspo") == ("gspo" in name)
    assert config.trainer.v1.sampler.custom_sampler.name == reward_sampler.__name__
    assert config.reward.num_workers == 1
    manager = BatchedRewardManager(config, make_tokenizer())
    reward = manager.batcher.reward.function
    threshold = RWML[name.split("_")[1]][2] if name in FULL else 0.2
    assert (reward.tag, reward.rouge.step, reward.embedding.threshold) == ("next_state", 0.2, threshold)


@pytest.mark.parametrize("name", FULL)
def test_the_constants_of_the_paper(name):
    config = of_recipe(name)
    actor = config.actor_rollout_ref.actor
    model, group, threshold = RWML[name.split("_")[1]]
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
    config = of_recipe(name)
    trl = config_file.read(str(RECIPES / "trl" / f"{name.replace('gspo', 'grpo')}.yaml"))
    trl |= config_file.read(str(RECIPES / "trl" / "gspo.yaml")) if "gspo" in name else {}
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_a_world_to_a_trained_model_in_one_command(tmp_path):
    """A step of each trainer: rollouts, filters, the filter model, easy samples, rows, GSPO with validation, and a model on disk.

    That the reward teaches something is shown above, at night.
    """
    short = "data.max_response_length=16,data.val_max_samples=16,data.train_batch_size=8"
    done = run_pipeline(tmp_path, "verl", "algorithm=gspo", f"flags={short}")
    assert done.returncode == 0, done.stderr[-5000:]
    work = tmp_path / "out"
    steps = [json.loads(line)["data"] for line in (work / "rwml_s0" / "log.jsonl").read_text().splitlines()]
    assert [step[ACCURACY] for step in steps if ACCURACY in step] == [0, 0]  # less than the tags of a prediction have
    (step,) = [step for step in steps if "actor/grad_norm" in step]
    assert step["wm/rwml/no_prediction"] == 1
    check_pipeline(work / "s0", work / "s0" / "data" / "train.parquet")
    (trained,) = (work / "rwml_s0" / "model").glob("*.safetensors")
    assert trained.stat().st_size > 100_000
