"""The trainer around the objective: schedules and resuming, evaluation, PEFT, rollout functions, metrics."""

import math

import pytest
import torch
from trl import GRPOTrainer

from support.on_trl import Batches, Ours, Scripted, config, dataset, make, make_model, run, series
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.trl import WorldModelGRPOConfig, WorldModelGRPOTrainer, WorldModelMixin


def test_metrics_are_token_weighted_means_over_the_step():
    trainer, _ = run(Ours, args={"max_steps": 1}, world_model=EchoConfig(0.5, {"run_code": 1.0, "lookup_doc": 0.5}))
    row = trainer.state.log_history[0]
    tools = {
        name: (row[f"echo/tool/{name}/nll"], row[f"echo/tool/{name}/tokens"]) for name in ("run_code", "lookup_doc")
    }
    tokens = sum(count for _, count in tools.values())
    assert row["echo/tokens"] == tokens == int(trainer.batches[0]["wm_num_tokens"])
    # a thousand tokens of tool descriptions in each prompt would make every test here four times as slow
    assert trainer.batches[0]["prompt_ids"].size(1) < 50
    assert row["echo/nll"] == pytest.approx(sum(nll * count for nll, count in tools.values()) / tokens)
    assert row["echo/perplexity"] == pytest.approx(math.exp(row["echo/nll"]))
    (nll_a, a), (nll_b, b) = tools["run_code"], tools["lookup_doc"]
    assert row["echo/loss"] == pytest.approx(0.5 * (nll_a * a + 0.5 * nll_b * b) / tokens)


def test_metrics_do_not_depend_on_micro_batches_or_logging_steps():
    rows = []
    for fields in (
        {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8},
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
    ):
        trainer, _ = run(Ours, args={"max_steps": 1, **fields}, world_model=EchoConfig(0.5))
        rows.append({k: v for k, v in trainer.state.log_history[0].items() if k.startswith("echo")})
    assert rows[0] == pytest.approx(rows[1])
    one, _ = run(Ours, world_model=EchoConfig(0.5))
    both, _ = run(Ours, args={"logging_steps": 2}, world_model=EchoConfig(0.5))
    tokens = series(one, "echo/tokens")
    mean = sum(n * t for n, t in zip(series(one, "echo/nll"), tokens, strict=True)) / sum(tokens)
    assert series(both, "echo/nll") == pytest.approx([mean])


@pytest.mark.parametrize("echo", [None, EchoConfig(0.5)])
def test_the_episodes_of_a_step_are_logged_with_and_without_an_objective(echo):
    seen = {}

    class Watched(Ours):
        def _calculate_rewards(self, inputs, prompts, completions, ids):
            seen.update(calls=[world.calls for world in self.environments], completions=completions, ids=ids)
            return super()._calculate_rewards(inputs, prompts, completions, ids)

    trainer, _ = run(Watched, args={"max_steps": 1, "max_completion_length": 300}, world_model=echo)
    row = trainer.state.log_history[0]
    figures = {name.removeprefix("wm/env/"): value for name, value in row.items() if name.startswith("wm/env/")}
    called = [
        call["function"]["name"]
        for messages in seen["completions"]
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
    episodes = len(seen["ids"])
    assert sum(seen["calls"]) == sum(name != "no_such_tool" for name in called) > 0
    for name in ("run_code", "lookup_doc"):
        assert figures[f"calls/{name}"] == pytest.approx(called.count(name) / episodes)
    assert figures["calls/unknown"] == pytest.approx(called.count("no_such_tool") / episodes)
    assert figures["calls/unknown"] > 0
    lengths = [len(ids) for ids in seen["ids"]]
    assert figures["policy_tokens"] + figures["environment_tokens"] == pytest.approx(sum(lengths) / episodes)
    assert figures["policy_tokens"] == pytest.approx(
        sum(int((batch["tool_mask"] * batch["completion_mask"]).sum()) for batch in trainer.batches) / episodes
    )
    assert figures["truncated"] == pytest.approx(row["completions/clipped_ratio"])
    assert 0 < figures["truncated"] < 1
    assert set(figures) == {
        *("calls/run_code", "calls/lookup_doc", "calls/unknown", "policy_tokens", "environment_tokens", "truncated")
    }


def test_a_schedule_goes_on_where_it_was_after_a_resume(tmp_path):
    echo = EchoConfig(1.0, schedule="linear", schedule_steps=4, end_coeff=0.2)
    fields = {
        "output_dir": str(tmp_path),
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "gradient_accumulation_steps": 1,
    }
    whole, _ = run(Ours, args=fields, world_model=echo)
    assert series(whole, "echo/coeff") == pytest.approx([1.0, 0.8, 0.6, 0.4])
    other = make_model(whole.processing_class, seed=5, dtype=torch.float64)
    resumed = make(Ours, args=fields, model=other, world_model=echo)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert series(resumed, "echo/coeff")[-2:] == pytest.approx([0.6, 0.4])


def test_step_schedule_ends_in_the_host_alone():
    trainer, _ = run(Ours, world_model=EchoConfig(1.0, schedule="step", schedule_steps=1))
    assert series(trainer, "echo/coeff") == [1.0, 0.0]
    assert series(trainer, "echo/loss")[1] == 0.0


def test_evaluation_adds_the_term_and_logs_it():
    losses = {}
    for coeff in (0.0, 0.5):
        torch.manual_seed(0)
        args = {"per_device_eval_batch_size": 8}
        trainer = make(Ours, args=args, eval_dataset=dataset(8), world_model=EchoConfig(coeff))
        torch.manual_seed(1)
        losses[coeff] = trainer.evaluate() | trainer.state.log_history[-1]
    terms = losses[0.5]["eval_echo/loss"]
    assert terms > 0
    assert losses[0.0]["eval_echo/nll"] == pytest.approx(losses[0.5]["eval_echo/nll"])
    assert losses[0.5]["eval_loss"] - losses[0.0]["eval_loss"] == pytest.approx(terms, rel=1e-4)


def test_groups_without_reward_variance_are_kept_or_dropped(caplog):
    class Flat(Ours):
        def _calculate_rewards(self, *args, **kwargs):
            return torch.ones_like(super()._calculate_rewards(*args, **kwargs))

    kept, _ = run(Flat, args={"max_steps": 1}, world_model=EchoConfig(0.5))
    # the override sits in front of the mixin, whose own view of the rewards is the host's
    assert kept.state.log_history[0]["echo/policy_silent"] == 1.0
    assert "all advantages of an optimizer step were 0" in caplog.text

    def constant(completions, **_):
        return [1.0] * len(completions)

    for choice, expected in (("keep", True), ("drop", False)):
        echo = EchoConfig(0.5, zero_variance_groups=choice)
        trainer, _ = run(Ours, args={"max_steps": 1}, reward_funcs=[constant], world_model=echo)
        assert (trainer.state.log_history[0]["echo/tokens"] > 0) is expected


def test_peft_trains_the_adapter_with_the_same_term():
    peft = pytest.importorskip("peft")
    gradients = []
    for echo in (EchoConfig(0.0), EchoConfig(0.37), EchoConfig(0.74)):
        targets = ["q_proj", "v_proj", "embed_tokens"]
        adapter = peft.LoraConfig(target_modules=targets, init_lora_weights=False)
        _, steps = run(Ours, args={"max_steps": 1}, world_model=echo, peft_config=adapter)
        gradients.append(steps[0])
    once, twice = gradients[1] - gradients[0], gradients[2] - gradients[0]
    assert once.norm() > 0
    assert (
        twice - 2 * once
    ).norm() <= 1e-5 * twice.norm()  # linear in the coefficient, on the adapter's parameters alone


class ByFunction(Batches, WorldModelGRPOTrainer):
    pass


def rollout(spans):
    """Completions with the environment's text in tokens 2-4, and what `spans` says of it."""

    def function(prompts, trainer):
        tokenizer = trainer.processing_class
        completion = tokenizer("ab" + "xyz" + "c<|im_end|>").input_ids
        count = len(prompts)
        output = {
            "prompt_ids": [tokenizer("p").input_ids] * count,
            "completion_ids": [completion] * count,
            "logprobs": [[0.0] * len(completion)] * count,
            "env_mask": [[1, 1, 0, 0, 0, 1, 1]] * count,
        }
        return output if spans is None else {**output, "env_spans": [spans] * count}

    return function


def by_function(spans, echo, function=None):
    function = function or rollout(spans)
    trainer, _ = run(ByFunction, args={"max_steps": 1}, environment=None, rollout_func=function, world_model=echo)
    return trainer, trainer.batches[0]["wm_weights"][0].tolist()


def test_rollout_function_with_spans():
    spans = [
        (2, 3, "tool", "search", False),
        (3, 4, "tool", "search", True),
        {"start": 4, "end": 5, "role": "user", "tool": None, "content": True},
    ]
    trainer, weights = by_function(spans, EchoConfig(0.5))
    assert weights == [0, 0, 0, 1, 1, 0, 0]
    assert trainer.state.log_history[0]["echo/tool/search/tokens"] == 8  # one token of each of eight completions
    assert by_function(spans, EchoConfig(0.5, roles=["user"]))[1] == [0, 0, 0, 0, 1, 0, 0]
    assert by_function(spans, EchoConfig(0.5, {"search": 2.0}, content_only=False))[1] == [0, 0, 2, 2, 0, 0, 0]
    assert by_function(None, EchoConfig(0.5))[1] == [0, 0, 1, 1, 1, 0, 0]  # without spans whole runs count
    clipped = [(4, 5, "tool", "a", True), (9, 12, "tool", "a", True)]  # to the completion
    assert by_function(clipped, EchoConfig(0.5))[1] == [0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("given", [True, False], ids=["spans", "a mask alone"])
def test_turn_information_of_a_rollout_function_is_read_off_its_tokens(given):
    """What comes back repeats what the policy said, its reasoning left out."""
    said, seen = "<think>long ago</think>say hello<|im_end|>", "hello say"

    def function(prompts, trainer):
        tokenizer = trainer.processing_class
        parts = [tokenizer(text).input_ids for text in (said, seen, "c<|im_end|>")]
        ids = [token for part in parts for token in part]
        mask = [int(number != 1) for number, part in enumerate(parts) for _ in part]
        count, start = len(prompts), len(parts[0])
        output = {"prompt_ids": [parts[2]] * count, "completion_ids": [ids] * count, "env_mask": [mask] * count}
        if given:
            output["env_spans"] = [[(start, start + len(seen), "tool", "a", True)]] * count
        return {**output, "logprobs": [[0.0] * len(ids)] * count}

    trainer, weights = by_function(None, EchoConfig(0.5, turn_information=True), function)
    assert [weight for weight in weights if weight] == pytest.approx([0.05] * len(seen))
    assert trainer.state.log_history[0]["echo/information"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(1, 3, "tool", "a", True)], "that the policy sampled"),
        ([(2, 4, "tool", "a", True), (3, 5, "tool", "a", True)], "overlap"),
        ([(3, 2, "tool", "a", True)], "ends before it starts"),
        ([(2, 3)], "is not a span"),
        ([(2, 3, "tools", "a", True)], "with a role of tool, user, environment, system"),
        ([(2, 3, "tool", "a", "False")], "is not a span"),
    ],
)
def test_bad_spans_of_a_rollout_function_say_so(spans, message):
    with pytest.raises(UserError, match=message):
        by_function(spans, EchoConfig(0.5))


def test_bad_spans_do_not_stop_a_run_at_0(caplog):
    trainer, weights = by_function([(1, 3, "tool", "a", True)], EchoConfig(0.0))
    assert "are not measured (coeff is 0): env_spans" in caplog.text
    assert not any(weights)
    assert trainer.state.log_history[0]["echo/tokens"] == 0


def test_spans_without_an_environment_mask_are_refused():
    inner = rollout([(2, 5, "tool", "a", True)])

    def without_mask(prompts, trainer):
        output = inner(prompts, trainer)
        del output["env_mask"]
        return output

    with pytest.raises(UserError, match="returns 'env_spans' but no env_mask"):
        by_function(None, EchoConfig(0.5), function=without_mask)


def test_select_has_the_last_word():
    seen = []

    def select(span, message):
        seen.append((span.tool, message["content"]))
        return "OUT[" in message["content"]

    trainer, _ = run(Ours, args={"max_steps": 1}, world_model=EchoConfig(0.5, select=select))
    row = trainer.state.log_history[0]
    assert row["echo/tool/lookup_doc/tokens"] == 0 < row["echo/tool/run_code/tokens"]
    assert {tool for tool, _ in seen} >= {"lookup_doc", "run_code"}


def test_truncated_completions_can_be_left_out():
    every, _ = run(Ours, args={"max_steps": 1}, world_model=EchoConfig(0.5))
    ended, _ = run(Ours, args={"max_steps": 1}, world_model=EchoConfig(0.5, include_truncated=False))
    batch = ended.batches[0]
    eos = ended.processing_class.eos_token_id
    last = batch["completion_mask"].sum(1) - 1
    cut = batch["completion_ids"].gather(1, last[:, None])[:, 0] != eos
    assert (batch["wm_weights"][cut] == 0).all()
    assert series(ended, "echo/tokens")[0] <= series(every, "echo/tokens")[0]


def test_mixin_over_a_subclass_keeps_its_overrides():
    class Doubled(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return 2 * super()._compute_loss(model, inputs)

    class Mine(Batches, Scripted, WorldModelMixin, Doubled):
        pass

    class Host(Batches, Scripted, Doubled):
        pass

    _, host = run(Host, args={"max_steps": 1})
    _, off = run(Mine, args={"max_steps": 1}, world_model=EchoConfig(0.0))
    assert torch.equal(host[0], off[0])


def test_config_fields_and_the_object_are_the_same_thing():
    by_fields, one = run(
        Ours, args=config(cls=WorldModelGRPOConfig, max_steps=1, echo_coeff=0.37, echo_tools={"run_code": 0.5})
    )
    by_object, two = run(Ours, args={"max_steps": 1}, world_model=EchoConfig(0.37, {"run_code": 0.5}))
    assert torch.equal(one[0], two[0])
    assert by_fields._wm == by_object._wm == {"": by_object._wm[""].replace()}
