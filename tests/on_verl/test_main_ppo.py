"""verl's own `main_ppo`, unchanged, on a CPU: our recipes from their scripts to the weights that the rollout samples from."""

import math

import pytest

pytest.importorskip("verl")

import torch

from support.run_on_verl import run_recipe
from wm_plugin.tiny.policy import make_model, make_tokenizer
from wm_plugin.tiny.warm_start import behaviour_cloning

pytestmark = pytest.mark.slow

ECHO_KEYS = {
    "echo/nll",
    "echo/perplexity",
    "echo/tokens",
    "echo/coeff",
    "echo/loss",
    "echo/tokens_in_loss",
    "echo/policy_silent",
    "echo/tool/move/nll",
    "echo/tool/move/tokens",
    "wm/lost",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where runs find a policy that walks, and so has rewards that differ, but has learnt nothing of the world."""
    folder, tokenizer = tmp_path_factory.mktemp("verl"), make_tokenizer()
    model = make_model(tokenizer, seed=0)
    behaviour_cloning(model, tokenizer, 0, steps=40, demonstrations=300, environment_weight=0.0)
    path = folder / "runs" / "tiny_random"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return folder


def check_rollouts_are_on_policy(run):
    """The rollout starts from weights of its own, so that its log-probabilities are the trainer's only after a transfer."""
    assert run.series("training/rollout_probs_diff_valid") == [1] * len(run.steps)
    assert max(run.series("training/rollout_probs_diff_max")) < 1e-5


def test_grpo_learns_to_predict_the_environment(tmp_path):
    run = run_recipe("echo_grpo_tiny", tmp_path, "trainer.total_training_steps=4")
    assert run.code == 0, run.output[-5000:]
    assert run.series("training/global_step") == [1, 2, 3, 4]
    for step in run.steps:
        assert set(step) >= ECHO_KEYS
        assert step["echo/tokens"] == step["echo/tool/move/tokens"] > 0
        assert step["wm/lost"] == 0
    losses = run.series("echo/nll")
    assert losses[0] > 4  # random weights over 97 characters: log 97 is 4.6
    assert losses[-1] < losses[0] - 0.5
    check_rollouts_are_on_policy(run)


def test_gspo_clips_ratios_of_sequences(folder):
    """Two updates a step: at the second one the ratios of sequences lie far outside GSPO's clip, a thousandth of PPO's."""
    run = run_recipe(
        "echo_gspo_tiny", folder, "trainer.total_training_steps=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4"
    )
    assert run.code == 0, run.output[-5000:]
    assert len(run.steps) == 2
    assert max(run.series("actor/pg_clipfrac")) > 0.1
    assert run.series("echo/nll")[1] < run.series("echo/nll")[0]
    check_rollouts_are_on_policy(run)


def test_ppo_updates_the_critic_twelve_times_a_policy_update(folder):
    run = run_recipe("echo_ppo_tiny", folder, "trainer.total_training_steps=2", "trainer.save_freq=2")
    assert run.code == 0, run.output[-5000:]
    updates = {}
    for model in ("actor", "critic"):
        path = folder / "runs" / "echo_ppo_tiny" / "global_step_2" / model / "optim_world_size_1_rank_0.pt"
        states = torch.load(path, weights_only=False)["state"]
        updates[model] = {int(state["step"]) for state in states.values()}
    assert updates == {"actor": {2}, "critic": {24}}
    assert run.steps[-1]["critic/vf_loss"] < run.steps[0]["critic/vf_loss"]
    assert run.series("echo/nll")[1] < run.series("echo/nll")[0]
    check_rollouts_are_on_policy(run)


def test_wmacts_budget_reaches_the_next_rollout(folder):
    """With the world-model objective on top: WMAct + ECHO."""
    tiny = folder / "runs" / "tiny_verl"  # where WMAct's recipes look for a policy that walks
    tiny.symlink_to("tiny_random")
    run = run_recipe("wmact_ppo_tiny", folder, "wm.coeff=1.0")
    assert run.code == 0, run.output[-5000:]
    budgets, turns = run.series("wm/turn_budget"), run.series("wm/env/turns")
    assert budgets == run.series("wm/env/budget")
    assert budgets[0] == 6 > budgets[-1]
    for before, mean, after in zip(budgets, turns, budgets[1:], strict=False):
        assert mean <= before
        most = range(math.ceil(mean), int(before) + 1)  # the maximum is not logged
        assert after in {max(1, min(before, math.ceil((mean + longest) / 2))) for longest in most}
    rewards, successes = run.series("critic/rewards/mean"), run.series("wm/env/success")
    assert all(0 < reward <= success for reward, success in zip(rewards, successes, strict=True))
    assert sum(rewards) < sum(successes)  # a reward is a success, less the share of moves that did nothing
    assert run.series("echo/nll")[-1] < run.series("echo/nll")[0]
    check_rollouts_are_on_policy(run)
