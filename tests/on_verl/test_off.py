"""Coefficient 0: bit for bit verl's own update."""

import random
import re

import numpy as np
import pytest

pytest.importorskip("verl")

import torch
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from support import on_verl
from support.on_verl import make_batch, make_rollouts, make_worker, policy_loss, with_term
from support.verl_recipes import stock as composed
from wm_plugin import EchoConfig
from wm_plugin.objectives import Objectives
from wm_plugin.verl.worker import WorldModelActorRolloutRefWorker, WorldModelTrainingWorker

STEPS = 3
ROLLOUTS = [make_rollouts(3, seed=seed, silent=[1], padding=1) for seed in range(STEPS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    on_verl.save_model(folder, torch.float32)
    return folder


@pytest.fixture(scope="module")
def stock(folder):
    return make_worker(folder, TrainingWorker, precision="fp32", lr=1e-2)


@pytest.fixture(scope="module")
def ours(folder):
    return make_worker(folder, WorldModelTrainingWorker, precision="fp32", lr=1e-2)


@pytest.fixture(scope="module")
def vanilla(stock):
    return trained(stock, policy_loss())[0]


def trained(worker, loss, echo=None, **settings):
    """Everything that three optimizer steps leave behind, from the same start each time."""
    settings = {"dtype": torch.float32, "micro_batch_size_per_gpu": 2, **settings}
    worker.reset()  # reads the model from disk, and makes a new optimizer
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    before = on_verl.parameters(worker)
    updates = [on_verl.update(worker, loss, make_batch(rows, echo, **settings)) for rows in ROLLOUTS]
    after = on_verl.parameters(worker)
    assert not torch.equal(before, after)
    gradients = [gradient for update in updates for gradient in update.gradients]
    assert len(gradients) == STEPS
    return {
        "gradients": torch.stack(gradients),
        "parameters": after,
        "losses": [update.losses for update in updates],
        "policy losses": [update.metrics["actor/pg_loss"] for update in updates],
        "gradient norms": [update.metrics["grad_norm"] for update in updates],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1],
    }, updates


def assert_identical(one, other):
    for name, value in one.items():
        same = torch.equal(value, other[name]) if torch.is_tensor(value) else np.array_equal(value, other[name])
        if name == "python":
            same = value == other[name]
        assert same, name


@pytest.mark.parametrize("loss_agg_mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo"])
def test_bit_identical_to_verl(stock, ours, loss_mode, loss_agg_mode):
    actor = {"loss_mode": loss_mode, "loss_agg_mode": loss_agg_mode}
    expected, _ = trained(stock, policy_loss(**actor))
    echo = EchoConfig(0.0)
    found, updates = trained(ours, with_term(policy_loss(**actor), echo), echo)
    assert_identical(expected, found)
    assert updates[0].sums[1] > 30  # measured all the same
    assert updates[0].sums[3] == 0


def test_with_entropy_and_a_reference(stock, ours):
    actor, settings = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.5}, {"calculate_entropy": True}
    expected, _ = trained(stock, policy_loss(**actor), **settings)
    echo = EchoConfig(0.0, min_token_nll=4.5, normalization="observation_tokens", turn_information=True)
    found, _ = trained(ours, with_term(policy_loss(**actor), echo), echo, **settings)
    assert_identical(expected, found)


@pytest.mark.parametrize("columns", [None, EchoConfig(1.0)], ids=["verl's batch", "a batch with our columns"])
def test_a_worker_that_nobody_configured_is_verls(vanilla, ours, columns):
    found, updates = trained(ours, policy_loss(), columns)
    assert_identical(vanilla, found)
    assert not updates[0].sums


def test_the_comparison_sees_a_coefficient(vanilla, ours):
    echo = EchoConfig(1e-4)
    found, _ = trained(ours, with_term(policy_loss(), echo), echo)
    with pytest.raises(AssertionError, match="gradients"):
        assert_identical(vanilla, found)


def test_the_precision_of_real_runs(folder):
    """verl's default: bfloat16 by autocast and by FSDP over float32 parameters."""
    mixed = {"param": "bf16", "reduce": "fp32", "buffer": "fp32"}
    expected, _ = trained(make_worker(folder, TrainingWorker, precision="fp32", lr=1e-2, mixed=mixed), policy_loss())
    echo = EchoConfig(0.0)
    worker = make_worker(folder, precision="fp32", lr=1e-2, mixed=mixed)
    found, _ = trained(worker, with_term(policy_loss(), echo), echo)
    assert_identical(expected, found)


def hybrid_worker(cls, folder):
    """The worker that the trainer puts on each GPU, here with the actor alone, from verl's own config."""
    overrides = [
        f"model.path={folder}",
        "+model.load_tokenizer=false",
        "model.use_remove_padding=false",
        "+model.override_config.attn_implementation=eager",
        "actor.strategy=fsdp2",
        "actor.use_torch_compile=false",
        "actor.fsdp_config.use_torch_compile=false",
        "actor.ppo_micro_batch_size_per_gpu=2",
        "actor.optim.lr=1e-2",
        "actor.optim.total_training_steps=10",
        "rollout.log_prob_micro_batch_size_per_gpu=2",
        "rollout.n=1",
    ]
    overrides = [re.sub(r"^\+?", r"\g<0>actor_rollout_ref.", override) for override in overrides]
    config = composed(*overrides, groups=None)
    with on_verl.rank_environment():
        worker = cls(config.actor_rollout_ref, role="actor")
        worker.init_model()
    return worker


def test_the_hybrid_worker_is_verls_until_it_is_configured(folder):
    stock, ours = (hybrid_worker(cls, folder) for cls in (ActorRolloutRefWorker, WorldModelActorRolloutRefWorker))
    echo = EchoConfig(0.0)
    batch = make_batch(ROLLOUTS[0], echo, dtype=torch.float32)

    def assert_same_update():
        one, other = (dict(worker.update_actor(batch.clone())["metrics"]) for worker in (stock, ours))
        assert all(one[name] == other[name] for name in ("loss", "grad_norm", "actor/pg_loss"))
        assert torch.equal(*(on_verl.parameters(worker.actor) for worker in (stock, ours)))
        return other

    assert_same_update()
    assert ours.wm_configure(Objectives()) == {"worker": "WorldModelTrainingWorker", "objectives": []}
    assert "wm_sums/1" not in assert_same_update()
    assert ours.wm_configure(Objectives({"": echo})) == {"worker": "WorldModelTrainingWorker", "objectives": [""]}
    assert "wm_sums/1" in assert_same_update()
