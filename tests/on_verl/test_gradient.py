"""The term's gradient inside verl's real worker against plain transformers on the whole mini-batch."""

import inspect
import json
import math

import pytest

pytest.importorskip("verl")

import torch
from transformers import Qwen2ForCausalLM
from verl.workers.config import ActorConfig

from support import on_verl
from support import reference as trl_reference
from support.on_verl import (
    LOSS_AGG_MODES,
    make_batch,
    make_rollouts,
    make_worker,
    naive_weights,
    policy_loss,
    with_term,
)
from wm_plugin import EchoConfig

COEFF = 0.37
ROLLOUTS = make_rollouts(8)


def check_parity(
    worker,
    echo=None,
    rollouts=ROLLOUTS,
    *,
    tools=None,
    content_only=True,
    floor=0.0,
    ceiling=math.inf,
    observed=False,
    actor=None,
    updates=1,
    **settings,
):
    """`gradient - gradient(stock) == coeff · gradient(mean NLL)`, to 1e-6; without a policy loss `gradient` alone.

    Not closer: the model is float64, but Qwen2 computes its norms and eager attention's softmax in float32.
    """
    echo = EchoConfig(COEFF) if echo is None else echo
    base = policy_loss(**(actor or {}))
    known = vars(worker).setdefault("stock_updates", {})  # several tests need the same
    key = json.dumps([rollouts, actor, settings])
    if key not in known:
        known[key] = on_verl.update(worker, base, make_batch(rollouts, **settings))
    stock = known[key]
    ours = on_verl.update(worker, with_term(base, echo), make_batch(rollouts, echo, **settings))
    assert len(stock.gradients) == len(ours.gradients) == updates
    assert stock.rows == ours.rows
    model = on_verl.plain_model(worker)
    for before, after, rows in zip(stock.gradients, ours.gradients, ours.rows, strict=True):
        mine = [rollouts[row] for row in rows if not rollouts[row].padding]
        expected, tokens = trl_reference.term_gradient(
            model,
            [on_verl.padded(rollout) for rollout in mine],
            [naive_weights(rollout, tools, content_only=content_only) for rollout in mine],
            floor=floor,
            ceiling=ceiling,
            count=(lambda batch: int((1 - batch["tool_mask"]).sum())) if observed else None,
            temperature=settings.get("temperature", 1.0),
            normalization=echo.normalization,
        )
        assert tokens > 10 or echo.normalization in ("per_trajectory", "per_micro_batch")
        expected = echo.coeff * expected
        assert (after - echo.policy_loss * before - expected).norm() <= 1e-6 * expected.norm()
    return ours


def test_verl_has_no_other_way_to_aggregate():
    assert all(f'"{mode}"' in inspect.getsource(ActorConfig.__post_init__) for mode in LOSS_AGG_MODES)
    with pytest.raises(ValueError, match="Invalid loss_agg_mode"):
        policy_loss(loss_agg_mode="other")


@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo"])
@pytest.mark.parametrize("loss_agg_mode", LOSS_AGG_MODES)
def test_every_aggregation(worker, loss_agg_mode, loss_mode):
    # a sum over tokens is large: a larger coefficient keeps the difference from drowning in its rounding
    echo = EchoConfig(100 * COEFF if loss_agg_mode in ("token-sum", "seq-mean-token-sum") else COEFF)
    check_parity(worker, echo, actor={"loss_agg_mode": loss_agg_mode, "loss_mode": loss_mode})


@pytest.mark.parametrize("size", [1, 2, 8])
def test_micro_batches(worker, size):
    check_parity(worker, micro_batch_size_per_gpu=size)


def test_dynamic_batch_size(worker):
    ours = check_parity(worker, use_dynamic_bsz=True, max_token_len_per_gpu=110)
    assert len(ROLLOUTS) > ours.micro_batches > 2


def test_every_update_has_a_count_of_its_own(worker):
    ours = check_parity(worker, mini=4, updates=2, micro_batch_size_per_gpu=2)
    counts = [sum(int((naive_weights(ROLLOUTS[row]) != 0).sum()) for row in rows) for rows in ours.rows]
    assert counts[0] != counts[1]


def test_epochs_over_shuffled_mini_batches(worker):
    ours = check_parity(worker, mini=4, epochs=2, updates=4, dataloader_kwargs={"shuffle": True})
    assert sorted(ours.rows[0] + ours.rows[1]) == sorted(ours.rows[2] + ours.rows[3]) == list(range(8))
    assert ours.rows[0] != ours.rows[2]


def test_without_a_policy_loss_the_gradient_is_the_terms_alone(worker):
    actor = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.5}  # which are parts of it
    echo = EchoConfig(COEFF, policy_loss=False)
    ours = check_parity(worker, echo, actor=actor, calculate_entropy=True, micro_batch_size_per_gpu=2)
    assert ours.metrics["wm_sums/silent"] == 1
    assert "pg_loss" in " ".join(ours.metrics)  # and still measured


def test_padding_rows(worker):
    check_parity(worker, rollouts=make_rollouts(5, padding=3))


def test_with_entropy_and_a_reference(worker):
    actor = {"entropy_coeff": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.5}
    check_parity(worker, actor=actor, calculate_entropy=True)


def test_tempered_is_the_likelihood_at_that_temperature(worker):
    check_parity(worker, EchoConfig(COEFF, tempered=True), temperature=0.7)


def test_turn_information(worker):
    """By hand: every tool's results are of one category in `support.on_verl`."""
    echo = EchoConfig(COEFF, turn_information=True)
    check_parity(worker, echo, tools={"run_code": 0.05, "lookup_max": 0.5, "admin": 1.0}, micro_batch_size_per_gpu=2)
    echo = EchoConfig(COEFF, {"run_code": 0.3, "lookup_max": 2.0}, turn_information={"echo": 0.2})
    ours = check_parity(worker, echo, tools={"run_code": 0.06, "lookup_max": 1.0})
    found = echo.figures(ours.sums, on_verl.tool_names(echo), steps=1, coeff=COEFF, silent=0.0)
    told, shown = found["tool/run_code/tokens"], found["tool/lookup_max/tokens"]
    assert found["information"] == pytest.approx((0.06 * told + shown) / (0.3 * told + 2.0 * shown), rel=1e-6)


BY_TOOL = {"run_code": 0.3, "lookup_max": 0.07}
SELECTIONS = {
    "by tool": (EchoConfig(1.0, BY_TOOL), {"tools": BY_TOOL}),
    "one tool": (EchoConfig(COEFF, ["admin"]), {"tools": {"admin": 1.0}}),
    "scaffold": (EchoConfig(COEFF, content_only=False), {"content_only": False}),
    "observation tokens": (
        EchoConfig(COEFF, ["run_code"], normalization="observation_tokens"),
        {"tools": {"run_code": 1.0}, "observed": True},
    ),
    "a mean a trajectory": (EchoConfig(COEFF, normalization="per_trajectory"), {"micro_batch_size_per_gpu": 2}),
    "a mean a trajectory, padded": (
        EchoConfig(COEFF, roles={"tool": 1.0}, normalization="per_trajectory"),
        {"rollouts": make_rollouts(5, padding=3)},
    ),
    # the reference takes each trajectory as a micro-batch
    "a mean a micro-batch": (EchoConfig(COEFF, normalization="per_micro_batch"), {"micro_batch_size_per_gpu": 1}),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections(worker, name):
    echo, naive = SELECTIONS[name]
    check_parity(worker, echo, **naive)


def test_two_objectives_add_up_each_by_its_own_coefficient_and_count(worker):
    several = {
        "code": EchoConfig(COEFF, ["run_code"]),
        "others": EchoConfig(0.9, ["lookup_max", "admin"], normalization="per_trajectory", content_only=False),
    }
    base, settings = policy_loss(), {"micro_batch_size_per_gpu": 2}
    stock = on_verl.update(worker, base, make_batch(ROLLOUTS, **settings))
    ours = on_verl.update(worker, with_term(base, several), make_batch(ROLLOUTS, several, **settings))
    model, expected = on_verl.plain_model(worker), 0.0
    for one in several.values():
        tools = dict.fromkeys(one.tools, 1.0)
        weights = [naive_weights(rollout, tools, content_only=one.content_only) for rollout in ROLLOUTS]
        batches = [on_verl.padded(rollout) for rollout in ROLLOUTS]
        own, _ = trl_reference.term_gradient(model, batches, weights, normalization=one.normalization)
        expected = expected + one.coeff * own.clone()
    assert (ours.gradients[0] - stock.gradients[0] - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize(("floor", "ceiling"), [(4.5, None), (None, 4.6), (4.3, 4.9)])
def test_floor_and_ceiling_leave_the_count_alone(worker, floor, ceiling):
    echo = EchoConfig(COEFF, min_token_nll=floor, max_token_nll=ceiling)
    ours = check_parity(worker, echo, floor=floor or 0.0, ceiling=ceiling or math.inf)
    _nll, tokens, in_loss, *_ = ours.sums
    assert 0 < in_loss < tokens


def test_micro_batches_without_environment_tokens(worker):
    check_parity(worker, rollouts=make_rollouts(8, silent=[2, 3, 7]), micro_batch_size_per_gpu=2)


def test_nothing_to_predict_is_the_stock_update(worker):
    rollouts = make_rollouts(4, silent=range(4))
    base, echo = policy_loss(), EchoConfig(COEFF)
    stock = on_verl.update(worker, base, make_batch(rollouts))
    ours = on_verl.update(worker, with_term(base, echo), make_batch(rollouts, echo))
    assert torch.equal(ours.gradients[0], stock.gradients[0])
    assert ours.sums == [0.0] * len(ours.sums)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_gradient_checkpointing": True},
        {"use_remove_padding": True},
        {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}},
        {"engine": {"pad_to_length": True, "pad_to_length_bucket": 64}, "use_remove_padding": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_other_ways_through_the_model(model, fields, monkeypatch):
    monkeypatch.setattr(Qwen2ForCausalLM, "forward", Qwen2ForCausalLM.forward)  # fused kernels replace it for good
    check_parity(make_worker(model, **fields))


def test_lora(model):
    worker = make_worker(model, lora_rank=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    torch.manual_seed(1)
    trained = [p for p in worker.engine.module.parameters() if p.requires_grad]
    for parameter in trained:  # half of them start at 0, and the others' gradient with them
        torch.nn.init.normal_(parameter.to_local(), std=0.1)
    assert len(trained) == 8
    check_parity(worker)


def test_float32_keeps_what_its_rounding_leaves(model):
    """The difference of two gradients of the size of 1, each rounded to 7 digits."""
    worker = make_worker(model, precision="fp32")
    base, echo = policy_loss(), EchoConfig(COEFF)
    stock = on_verl.update(worker, base, make_batch(ROLLOUTS, dtype=torch.float32))
    ours = on_verl.update(worker, with_term(base, echo), make_batch(ROLLOUTS, echo, dtype=torch.float32))
    expected, _ = trl_reference.term_gradient(
        on_verl.plain_model(worker),
        [on_verl.padded(rollout) for rollout in ROLLOUTS],
        [naive_weights(rollout) for rollout in ROLLOUTS],
    )
    expected = COEFF * expected
    difference = ours.gradients[0].double() - stock.gradients[0].double()
    assert (difference - expected).norm() <= 1e-5 * expected.norm()


def test_one_forward_a_micro_batch(worker, monkeypatch):
    calls = []
    inner = worker.engine.module.forward
    monkeypatch.setattr(worker.engine.module, "forward", lambda *a, **k: calls.append(1) or inner(*a, **k))
    echo = EchoConfig(COEFF)
    on_verl.update(worker, with_term(policy_loss(), echo), make_batch(ROLLOUTS, echo))
    assert len(calls) == 2


def test_a_batch_without_our_columns_is_refused(worker):
    with pytest.raises(RuntimeError, match="the actor's batch has no wm_weights, wm_tool_ids, wm_counts"):
        on_verl.update(worker, with_term(policy_loss(), EchoConfig(COEFF)), make_batch(ROLLOUTS))
