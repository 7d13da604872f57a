"""The term's gradient inside the real trainer against plain transformers on the full batch."""

import functools
import math

import pytest
import torch
from trl import GRPOTrainer

from support import reference as trl_reference
from support.on_trl import Ours, Stock, ToolEnvironment, make_model, run
from wm_plugin import EchoConfig

COEFF = 0.37
LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]


class Repeating(ToolEnvironment):
    """`run_code` repeats what it was told; `lookup_doc` shows more than it was told."""

    def _printed(self, code):
        if "raise" in code:
            raise RuntimeError("host-made failure")
        return f"OUT[{code}] run_code code"

    def _shown(self, name):
        return f"DOC {name} größer 漢字 and many more words than there were before"


@functools.cache
def stock_run(environment, **fields):
    return run(Stock, args=fields, environment=environment)


def slow_but(values, *fast):
    """Parameters of which the fast tests take some: the same lines of ours compute all of them."""
    return [value if value in fast else pytest.param(*as_tuple(value), marks=pytest.mark.slow) for value in values]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def check_parity(
    echo: EchoConfig,
    *,
    tools=None,
    content_only=True,
    errors=False,
    floor=0.0,
    ceiling=math.inf,
    observed=False,
    environment=ToolEnvironment,
    **fields,
):
    """`grad - grad(stock) == coeff · grad(mean NLL)`, step by step, to 1e-6; without a policy loss `grad` alone."""
    stock, before = stock_run(environment, **fields)
    ours, after = run(Ours, args=fields, world_model=echo, environment=environment)
    assert len(stock.batches) == len(ours.batches) > 0
    for one, other in zip(stock.batches, ours.batches, strict=True):  # the same rollouts
        assert torch.equal(one["completion_ids"], other["completion_ids"])
    tokenizer = ours.processing_class
    accumulation = fields.get("gradient_accumulation_steps", 2)
    for step, (stock_gradient, gradient) in enumerate(zip(before, after, strict=True)):
        batches = ours.batches[step * accumulation : (step + 1) * accumulation]
        masks = [trl_reference.weights(b, tokenizer, tools, content_only=content_only, errors=errors) for b in batches]
        count = (lambda b: int((b["completion_mask"] * (1 - b["tool_mask"])).sum())) if observed else None
        expected, tokens = trl_reference.term_gradient(
            make_model(tokenizer, dtype=torch.float64),
            batches,
            masks,
            floor=floor,
            ceiling=ceiling,
            count=count,
            temperature=fields.get("temperature", 1.0),
            normalization=echo.normalization,
        )
        if echo.normalization != "per_micro_batch":
            assert tokens > 30 or echo.normalization == "per_trajectory"
            assert all(int(b["wm_num_tokens"]) == tokens for b in batches)
        difference = gradient.double() - echo.policy_loss * stock_gradient.double()
        expected = echo.coeff * expected
        assert (difference - expected).norm() <= 1e-6 * expected.norm()
    return ours


@pytest.mark.parametrize("loss_type", slow_but(LOSS_TYPES, "grpo", "luspo"))
def test_every_loss_type(loss_type):
    # luspo sums over a completion's tokens: unscaled rewards keep its gradient from drowning the difference in rounding
    check_parity(
        EchoConfig(COEFF), loss_type=loss_type, scale_rewards="none" if loss_type == "luspo" else "group", max_steps=1
    )


def test_gspo():
    check_parity(EchoConfig(COEFF), importance_sampling_level="sequence", max_steps=1)


def test_tempered_is_the_likelihood_at_that_temperature_and_says_so():
    ours = check_parity(EchoConfig(COEFF, tempered=True), temperature=0.7, max_steps=1)
    keys = {key for key in ours.state.log_history[0] if key.startswith("echo")}
    assert "echo_tempered/nll" in keys
    assert all(key.startswith("echo_tempered/") for key in keys)


@pytest.mark.parametrize("accumulation", slow_but([1, 2, 4], 2))
def test_turn_information(accumulation):
    """Two categories, by hand: `run_code` is an echo, `lookup_doc` a retrieval."""
    ours = check_parity(
        EchoConfig(COEFF, turn_information=True),
        tools={"run_code": 0.05, "lookup_doc": 1.0},
        environment=Repeating,
        gradient_accumulation_steps=accumulation,
        loss_type="dapo",
    )
    row = ours.state.log_history[0]
    repeated, shown = row["echo/tool/run_code/tokens"], row["echo/tool/lookup_doc/tokens"]
    assert row["echo/information"] == pytest.approx((0.05 * repeated + shown) / (repeated + shown), rel=1e-6)


BY_TOOL = {"run_code": 0.3, "lookup_doc": 0.07}
SELECTIONS = {
    "by tool": (EchoConfig(1.0, BY_TOOL), {"tools": BY_TOOL}),
    "one tool": (EchoConfig(COEFF, ["lookup_doc"]), {"tools": {"lookup_doc": 1.0}}),
    "scaffold": (EchoConfig(COEFF, content_only=False), {"content_only": False}),
    "observation tokens": (
        EchoConfig(COEFF, ["run_code"], normalization="observation_tokens"),
        {"tools": {"run_code": 1.0}, "observed": True},
    ),
    "turn information": (
        EchoConfig(1.0, BY_TOOL, content_only=False, turn_information={"echo": 0.2, "retrieval": 1.5}),
        {"tools": {"run_code": 0.2 * 0.3, "lookup_doc": 1.5 * 0.07}, "content_only": False, "environment": Repeating},
    ),
    "a mean a trajectory": (EchoConfig(COEFF, normalization="per_trajectory"), {}),
    "a mean a trajectory, by role and tool": (
        EchoConfig(1.0, BY_TOOL, roles={"tool": 2.0, "user": 0.5}, normalization="per_trajectory"),
        {"tools": {name: 2.0 * multiplier for name, multiplier in BY_TOOL.items()}},
    ),
    "a mean a micro-batch": (EchoConfig(COEFF, normalization="per_micro_batch"), {}),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections(name):
    echo, naive = SELECTIONS[name]
    check_parity(echo, max_steps=1, **naive)


def test_two_objectives_add_up_each_by_its_own_coefficient_and_count():
    fields = {"max_steps": 2}
    _, before = stock_run(ToolEnvironment, **fields)
    several = {
        "code": {"coeff": COEFF, "tools": ["run_code"], "schedule": "linear", "schedule_steps": 2},
        "docs": EchoConfig(0.9, ["lookup_doc"], normalization="per_trajectory", content_only=False),
    }
    ours, after = run(Ours, args=fields, world_model=several)
    tokenizer = ours.processing_class
    for step, (stock_gradient, gradient) in enumerate(zip(before, after, strict=True)):
        batches = ours.batches[step * 2 : (step + 1) * 2]
        expected = 0.0
        for coeff, tool, fields in (
            (COEFF / (step + 1), "run_code", {}),
            (0.9, "lookup_doc", {"content_only": False, "normalization": "per_trajectory"}),
        ):
            normalization = fields.pop("normalization", "selected_tokens")
            masks = [trl_reference.weights(b, tokenizer, {tool: 1.0}, **fields) for b in batches]
            model = make_model(tokenizer, dtype=torch.float64)
            own, _ = trl_reference.term_gradient(model, batches, masks, normalization=normalization)
            expected = expected + coeff * own
        assert (gradient.double() - stock_gradient.double() - expected).norm() <= 1e-6 * expected.norm()
    first = ours.state.log_history[0]
    assert (first["echo/code/coeff"], first["echo/docs/coeff"]) == (pytest.approx(COEFF), 0.9)
    assert first["echo/code/tool/run_code/tokens"] == first["echo/code/tokens"] > 0
    assert first["echo/docs/tokens"] > 0


@pytest.mark.parametrize("normalization", ["selected_tokens", "per_trajectory"])
def test_a_filter_of_whole_completions(normalization):
    """Those that looked something up: the others' tokens do not count, and neither do they as trajectories."""
    rewards = []

    def select_rollout(messages, reward):
        rewards.append(reward)
        return any(message["role"] == "tool" and message["name"] == "lookup_doc" for message in messages)

    fields = {"max_steps": 1, "loss_type": "dapo"}
    _, before = stock_run(Repeating, **fields)
    echo = EchoConfig(COEFF, normalization=normalization, select_rollout=select_rollout)
    ours, (gradient, *_) = run(Ours, args=fields, world_model=echo, environment=Repeating)
    masks, chosen = [], 0
    for batch in ours.batches:
        texts = ours.processing_class.batch_decode(batch["completion_ids"])
        keep = torch.tensor([["DOC " in text] for text in texts])
        masks.append(trl_reference.weights(batch, ours.processing_class, None) * keep)
        chosen += int(keep.sum())
    model = make_model(ours.processing_class, dtype=torch.float64)
    expected, _ = trl_reference.term_gradient(model, ours.batches, masks)
    if normalization == "per_trajectory":
        model.zero_grad()
        expected, rows = trl_reference.term_gradient(model, ours.batches, masks, normalization=normalization)
        assert 0 < chosen < rows
        expected = expected * rows / chosen
    difference = gradient.double() - before[0].double()
    assert (difference - COEFF * expected).norm() <= 1e-6 * COEFF * expected.norm()
    assert len(rewards) == 8
    assert len(set(rewards)) > 1


def test_with_host_made_errors():
    ours = check_parity(EchoConfig(COEFF, include_errors=True), errors=True, max_steps=1)
    assert any("host-made failure" in ours.processing_class.decode(b["completion_ids"].flatten()) for b in ours.batches)


@pytest.mark.parametrize(("floor", "ceiling"), slow_but([(5.5, None), (None, 6.0), (5.0, 6.5)], (5.0, 6.5)))
def test_floor_and_ceiling_leave_the_count_alone(floor, ceiling):
    ours = check_parity(
        EchoConfig(COEFF, min_token_nll=floor, max_token_nll=ceiling),
        floor=floor or 0.0,
        ceiling=ceiling or math.inf,
        max_steps=1,
    )
    assert 0 < ours.state.log_history[0]["echo/tokens_in_loss"] < 1


@pytest.mark.parametrize("accumulation", slow_but([1, 2, 4], 4))
def test_accumulation(accumulation):
    check_parity(EchoConfig(COEFF), gradient_accumulation_steps=accumulation, loss_type="dapo", max_steps=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2},  # a generation batch spans two optimizer steps
        {
            "steps_per_generation": 1,
            "gradient_accumulation_steps": 2,
            "max_steps": 1,
        },  # an optimizer step spans two generation batches
        pytest.param(
            {"steps_per_generation": 1, "num_iterations": 2, "gradient_accumulation_steps": 4}, marks=pytest.mark.slow
        ),
        pytest.param({"num_iterations": 2, "gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda fields: "-".join(f"{key}={value}" for key, value in fields.items()),
)
def test_windows(fields):
    check_parity(EchoConfig(COEFF), loss_type="dapo", **fields)


def test_without_a_policy_loss_the_gradient_is_the_terms_alone(caplog):
    """And the host's own advantages are there: its rewards have a variance."""
    ours = check_parity(EchoConfig(COEFF, policy_loss=False), max_steps=1)
    assert all(batch["advantages"].abs().sum() > 0 for batch in ours.batches)
    log = ours.state.log_history[0]
    assert log["loss"] == pytest.approx(log["echo/loss"], rel=1e-3)
    assert log["echo/policy_silent"] == 1
    texts = [record.message for record in caplog.records]
    assert sum(text.startswith("policy_loss is false: the policy loss is left out") for text in texts) == 1
    assert not any("all advantages" in text for text in texts)


def test_gradient_checkpointing():
    check_parity(EchoConfig(COEFF), gradient_checkpointing=True, max_steps=1)


def test_completions_masked_by_the_host_do_not_count():
    pytest.importorskip(
        "trl", minversion="1.9"
    )  # before it results are cut, not dropped: every completion is truncated
    ours = check_parity(EchoConfig(COEFF), mask_truncated_completions=True, max_completion_length=260, max_steps=1)
    assert ours.state.log_history[0]["echo/masked_by_host"] > 0


def test_one_forward_a_micro_batch(monkeypatch):
    calls = []
    inner = GRPOTrainer._get_per_token_logps_and_entropies
    monkeypatch.setattr(
        GRPOTrainer,
        "_get_per_token_logps_and_entropies",
        lambda self, *a, **k: calls.append(1) or inner(self, *a, **k),
    )
    ours, _ = run(Ours, world_model=EchoConfig(COEFF))
    assert len(calls) == len(ours.batches) == 4


def test_the_objective_does_not_depend_on_the_split():
    """The same completions in one and in four micro-batches: the same term."""
    gradients = []
    for accumulation, size in ((1, 8), (4, 2)):
        fields = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": size, "max_steps": 1}
        _, before = run(Stock, args=fields)
        _, after = run(Ours, args=fields, world_model=EchoConfig(COEFF))
        gradients.append(after[0] - before[0])
    whole, split = gradients
    assert (split - whole).norm() <= 1e-6 * whole.norm()
