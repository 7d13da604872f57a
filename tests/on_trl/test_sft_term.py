"""The term on TRL's SFT trainer: rows of every form, against plain transformers, in every way that the host takes them."""

import json
import random

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from support.agent_sft import AGREED, ROWS, SCHEMAS, naive, of_spans, trajectories, write_rollouts
from support.agreement import make_model as agreement_model
from support.agreement import read_tokenizer
from support.on_trl import Gradients, make_model
from support.sft_on_trl import TOKENIZER
from wm_plugin import EchoConfig
from wm_plugin.data.building import build
from wm_plugin.data.chat import conversation
from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import plain_messages
from wm_plugin.trl import _compat, sft_support

if Version(trl.__version__) < _compat.SFT_HEAD:
    pytest.skip(f"needs trl >= {_compat.SFT_HEAD}", allow_module_level=True)

from wm_plugin.trl import WorldModelSFTConfig, WorldModelSFTTrainer

CONTENT = of_spans()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Rows of tokens, as `wm data build` writes them."""
    folder = tmp_path_factory.mktemp("rows")
    build(write_rollouts(folder / "rollouts.jsonl"), "imitation", "trl", folder / "rows.jsonl", tokenizer=TOKENIZER)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def messages():
    return [{"messages": plain(conversation(one)), "tools": json.dumps(SCHEMAS)} for one in trajectories()]


def plain(dialogue):
    """With arguments as the template takes them, and the nulls that Arrow fills in."""
    nulls = {"tool_calls": None, "name": None, "tool_call_id": None}
    return [{**nulls, **message} for message in plain_messages(dialogue)]


def config(tmp_path, cls=SFTConfig, **fields):
    defaults = {
        "output_dir": str(tmp_path / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "max_steps": 1,
        "per_device_train_batch_size": ROWS,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1e9,
        "seed": 3,
        "max_length": None,
    }
    return cls(**{**defaults, **fields})


def run(cls, rows, args, dtype=torch.float32, **kwargs):
    gradients = Gradients()
    model = make_model(TOKENIZER, dtype=dtype)
    random.seed(0)
    np.random.seed(0)
    trainer = cls(
        model, args, train_dataset=Dataset.from_list(rows), processing_class=TOKENIZER, callbacks=[gradients], **kwargs
    )
    torch.manual_seed(5)
    trainer.train()
    return trainer, gradients.steps


def ours(rows, args, echo, **kwargs):
    return run(WorldModelSFTTrainer, rows, args, world_model=echo, **kwargs)


def check(found, expected, coeff, tolerance=1e-5):
    """A step's log and gradient are those of the formula."""
    (trainer, (gradient,)), (agent, environment, wanted) = found, expected
    row = trainer.state.log_history[0]
    assert row["loss"] == pytest.approx(agent + coeff * environment, rel=1e-5)
    assert row["echo/loss"] == pytest.approx(coeff * environment, rel=1e-5)
    assert torch.allclose(gradient, wanted, rtol=1e-3, atol=tolerance * float(wanted.abs().max()))


# -- rows of tokens -----------------------------------------------------------------------------------------------------------


def test_spans_are_what_the_environment_said(tokens):
    for row, trajectory in zip(tokens, trajectories(), strict=True):
        texts = [TOKENIZER.decode(row["input_ids"][s["start"] : s["end"]]) for s in row["env_spans"] if s["content"]]
        assert texts == [observation.text for turn in trajectory.turns for observation in turn.observations]
        for span in row["env_spans"]:
            assert not any(row["assistant_masks"][span["start"] : span["end"]])
        assert row["reward"] == trajectory.reward
        # what lies between the agent's turns is the environment's, scaffold included
        said = [place for place, counts in enumerate(row["assistant_masks"]) if counts]
        covered = {place for span in row["env_spans"] for place in range(span["start"], span["end"])}
        assert {*range(said[0], said[-1])} - {*said} == covered - {*range(said[-1], len(row["input_ids"]))}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"packing": True, "max_length": 600},
        {"padding_free": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        pytest.param({"pad_to_multiple_of": 64}, marks=pytest.mark.slow),
        pytest.param({"average_tokens_across_devices": False}, marks=pytest.mark.slow),
        pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.slow),
    ],
    ids=lambda fields: "-".join(fields) or "whole",
)
def test_loss_and_gradient_by_the_formula_however_the_batch_is_split(tokens, tmp_path, fields):
    expected = naive(make_model(TOKENIZER), tokens, CONTENT, coeff=0.7)
    found = ours(tokens, config(tmp_path, **fields), EchoConfig(0.7))
    check(found, expected, 0.7)
    logged = found[0].state.log_history[0]
    assert logged["echo/tokens"] == sum(map(sum, map(CONTENT, tokens)))
    assert logged["echo/policy_silent"] == 0


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
def test_rows_are_cut_as_the_host_cuts_them(tokens, tmp_path, mode):
    length = 150
    kept = slice(0, length) if mode == "keep_start" else slice(-length, None)
    weighed = [{**row, "w": CONTENT(row)} for row in tokens]
    cut = [{name: row[name][kept] for name in ("input_ids", "assistant_masks", "w")} for row in weighed]
    cut = [row for row in cut if any(row["assistant_masks"])]
    assert any(len(row["input_ids"]) > length for row in tokens)
    expected = naive(make_model(TOKENIZER), cut, lambda row: row["w"], coeff=0.5)
    fields = {"max_length": length, "truncation_mode": mode, "per_device_train_batch_size": len(cut)}
    check(ours(tokens, config(tmp_path, **fields), EchoConfig(0.5)), expected, 0.5)


def both(row):
    return [float(bool(weight)) for weight in of_spans(lambda span: 1.0)(row)]


def means(row):
    weights = CONTENT(row)
    return [weight / max(sum(weights[1:]), 1) for weight in weights]


CASES = {
    "tools": (EchoConfig(0.5, {"look": 2.0}), of_spans(lambda s: 2.0 * (s["content"] and s["tool"] == "look")), None),
    "roles": (EchoConfig(0.5, roles=["user"]), of_spans(lambda s: float(s["content"] and s["role"] == "user")), None),
    "scaffold": (EchoConfig(0.5, content_only=False), both, None),
    "observation_tokens": (
        EchoConfig(0.5, roles=["tool"], normalization="observation_tokens"),
        of_spans(lambda s: float(s["content"] and s["role"] == "tool")),
        lambda rows: sum(map(sum, map(both, rows))),
    ),
    "per_trajectory": (EchoConfig(0.5, normalization="per_trajectory"), means, len),
    "rllm": (
        EchoConfig(preset="rllm", coeff=0.5),
        lambda row: [w / max(sum(both(row)[1:]), 1) for w in both(row)],
        len,
    ),
    "select": (
        EchoConfig(
            0.5, select=lambda span, message: message["content"].startswith("any") and message["role"] == "user"
        ),
        of_spans(lambda s: float(s["content"] and s["role"] == "user")),
        None,
    ),
    "select_rollout": (
        EchoConfig(
            0.5, select_rollout=lambda messages, reward: reward == 0.0 and messages[-1]["content"].startswith("done")
        ),
        lambda row: [weight * (row["reward"] == 0) for weight in CONTENT(row)],
        None,
    ),
}


SLOW_CASES = ("roles", "rllm", "scaffold")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW_CASES else []) for one in CASES]
)
def test_options_mean_what_they_mean_in_rollouts(tokens, tmp_path, name):
    echo, weights, divide = CASES[name]
    number = None if divide is None else (lambda _: divide(tokens))
    expected = naive(make_model(TOKENIZER), tokens, weights, coeff=0.5, divide=number)
    fields = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    check(ours(tokens, config(tmp_path, **fields), echo), expected, 0.5)


def test_without_the_hosts_loss_observations_alone_train(tokens, tmp_path):
    _, environment, gradient = naive(make_model(TOKENIZER), tokens, CONTENT, coeff=0.5, policy=False)
    trainer, (found,) = ours(tokens, config(tmp_path), EchoConfig(0.5, policy_loss=False))
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.5 * environment, rel=1e-5)
    assert trainer.state.log_history[0]["echo/policy_silent"] == 1
    assert torch.allclose(found, gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()))


@pytest.mark.slow
def test_bounds_leave_tokens_out_of_the_loss_and_not_of_n(tokens, tmp_path):
    plain, _ = ours(tokens, config(tmp_path), EchoConfig(0.5))
    bounded, _ = ours(tokens, config(tmp_path), EchoConfig(0.5, min_token_nll=plain.state.log_history[0]["echo/nll"]))
    first, second = plain.state.log_history[0], bounded.state.log_history[0]
    assert second["echo/tokens"] == first["echo/tokens"]
    assert 0 < second["echo/tokens_in_loss"] < 1
    assert second["echo/loss"] < first["echo/loss"]


def test_several_objectives_have_counts_and_figures_of_their_own(tokens, tmp_path):
    several = {"tools": EchoConfig(0.5, roles=["tool"]), "users": {"coeff": 0.2, "roles": ["user"]}}
    trainer, (gradient,) = ours(tokens, config(tmp_path), several)
    parts = [
        naive(
            make_model(TOKENIZER), tokens, of_spans(lambda s, r=role: float(s["content"] and s["role"] == r)), coeff=c
        )
        for role, c in (("tool", 0.5), ("user", 0.2))
    ]
    alone = naive(make_model(TOKENIZER), tokens, CONTENT, coeff=0.0)[2]
    wanted = parts[0][2] + parts[1][2] - alone
    row = trainer.state.log_history[0]
    assert torch.allclose(gradient, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))
    assert (row["echo/tools/nll"], row["echo/users/nll"]) == (pytest.approx(parts[0][1]), pytest.approx(parts[1][1]))
    same = config(
        tmp_path,
        WorldModelSFTConfig,
        world_model={"tools": {"coeff": 0.5, "roles": ["tool"]}, "users": several["users"]},
    )
    assert torch.equal(run(WorldModelSFTTrainer, tokens, same)[1][0], gradient)


@pytest.mark.slow
def test_a_schedule_follows_the_optimizer_steps(tokens, tmp_path):
    echo = EchoConfig(1.0, schedule="linear", schedule_steps=2)
    trainer, _ = ours(tokens, config(tmp_path, max_steps=3), echo)
    assert [row["echo/coeff"] for row in trainer.state.log_history[:3]] == [1.0, 0.5, 0.0]


# -- rows of messages ---------------------------------------------------------------------------------------------------------


def as_the_host_masks(rows, args, tokens):
    """The rows of tokens, with the host's own choice of the assistant's: it may count the line's end after a turn."""
    stock = SFTTrainer(make_model(TOKENIZER), args, train_dataset=Dataset.from_list(rows), processing_class=TOKENIZER)
    masked = []
    for row, own in zip(tokens, stock.train_dataset, strict=True):
        assert own["input_ids"] == row["input_ids"]
        masked.append({**row, "assistant_masks": [int(label != -100) for label in own["labels"]]})
    return masked


def test_dialogues_are_the_same_as_tokens(tokens, tmp_path):
    """With the host's own marks of the assistant's tokens, and its own tokens."""
    args = config(tmp_path, assistant_only_loss=True)
    found = ours(messages(), args, EchoConfig(0.7))
    check(found, naive(make_model(TOKENIZER), as_the_host_masks(messages(), args, tokens), CONTENT, coeff=0.7), 0.7)
    tools = {key for key in found[0].state.log_history[0] if key.startswith("echo/tool/")}
    assert tools == {f"echo/tool/{name}/{figure}" for name in ("look", "take") for figure in ("nll", "tokens")}


def test_prompt_and_completion_count_what_the_completion_shows(tokens, tmp_path):
    rows = []
    for row in messages():
        first = next(place for place, one in enumerate(row["messages"]) if one["role"] == "assistant")
        rows.append({"prompt": row["messages"][:first], "completion": row["messages"][first:], "tools": row["tools"]})
    args = config(tmp_path, assistant_only_loss=True)
    expected = naive(make_model(TOKENIZER), as_the_host_masks(rows, args, tokens), CONTENT, coeff=0.7)
    check(ours(rows, args, EchoConfig(0.7)), expected, 0.7)
    with pytest.raises(UserError, match="counts the environment's tokens already.*assistant_only_loss: true"):
        ours(rows, config(tmp_path), EchoConfig(0.7))
    trainer, _ = ours(rows, config(tmp_path), EchoConfig(0.0))
    assert trainer.state.log_history[0]["echo/nll"] == pytest.approx(expected[1], rel=1e-5)


# -- coefficient 0 --------------------------------------------------------------------------------------------------------------

OFF = {
    "tokens": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3},
    "cut": {"max_length": 150},
    "cut before the agent speaks": {"max_length": 40, "per_device_train_batch_size": 2},
    "packed": {"packing": True, "max_length": 500, "per_device_train_batch_size": 1},
    "packed and split": {
        "packing": True,
        "max_length": 300,
        "packing_strategy": "bfd_split",
        "per_device_train_batch_size": 1,
    },
    "packed anywhere": {
        "packing": True,
        "max_length": 300,
        "packing_strategy": "wrapped",
        "per_device_train_batch_size": 1,
    },
    "shuffled": {"shuffle_dataset": True, "per_device_train_batch_size": 2},
    "dft": {"loss_type": "dft"},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 1},
}


SLOW_OFF = ("dft", "evaluated", "packed and split", "packed anywhere", "shuffled")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW_OFF else []) for one in OFF])
def test_bit_identical_to_the_host_at_0(tokens, tmp_path, name):
    args = config(tmp_path, max_steps=3, learning_rate=1e-2, **OFF[name])
    held_out = {"eval_dataset": Dataset.from_list(tokens[:2])} if name == "evaluated" else {}
    results = []
    for cls, more in ((SFTTrainer, {}), (WorldModelSFTTrainer, {"world_model": EchoConfig(0.0)})):
        trainer, gradients = run(cls, tokens, args, **more, **held_out)
        parameters = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        random_state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        logs = [
            {k: v for k, v in row.items() if "echo" not in k and "runtime" not in k and "per_second" not in k}
            for row in trainer.state.log_history
        ]
        results.append((logs, [g.tolist() for g in gradients], parameters.tolist(), random_state))
    assert results[0] == results[1]
    measured = "echo/nll" in trainer.state.log_history[0]
    assert measured == (name != "cut before the agent speaks")  # whose rows end before it is answered


def test_bit_identical_with_dropout_on_dialogues(tmp_path):
    pytest.importorskip("peft")
    from peft import LoraConfig

    lora = {"peft_config": LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.1)}
    args = config(tmp_path, max_steps=2, learning_rate=1e-2, assistant_only_loss=True)
    stock = run(SFTTrainer, messages(), args, **lora)
    found = ours(messages(), args, EchoConfig(0.0), **lora)
    assert all(torch.equal(a, b) for a, b in zip(stock[1], found[1], strict=True))
    assert [r["loss"] for r in stock[0].state.log_history[:2]] == [r["loss"] for r in found[0].state.log_history[:2]]


def test_without_a_configuration_nothing_is_measured(tokens, tmp_path, caplog):
    trainer, _ = run(WorldModelSFTTrainer, tokens, config(tmp_path))
    assert not [key for key in trainer.state.log_history[0] if key.startswith("echo")]
    assert "there is no world_model" in caplog.text


def test_what_cannot_be_measured_does_not_stop_a_run_at_0(tmp_path, caplog):
    row = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "tool", "content": "c"},
        ]
    }
    trainer, _ = ours([row] * 2, config(tmp_path), EchoConfig(0.0))
    assert "row 0: message 3" in caplog.text
    assert trainer.state.log_history[0]["echo/tokens"] == 0


# -- evaluations and the guard --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluations_keep_the_hosts_loss_and_measure_each_set(tokens, tmp_path):
    args = config(tmp_path, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=3)
    sets = {"first": Dataset.from_list(tokens[:4]), "second": Dataset.from_list(tokens[4:])}
    trainer, _ = ours(tokens, args, EchoConfig(0.5), eval_dataset=sets)
    stock, _ = run(SFTTrainer, tokens, args, eval_dataset=sets)
    logs = {key: value for row in trainer.state.log_history for key, value in row.items()}
    theirs = {key: value for row in stock.state.log_history for key, value in row.items()}
    for name, rows in (("first", tokens[:4]), ("second", tokens[4:])):
        assert logs[f"eval_{name}_loss"] == pytest.approx(theirs[f"eval_{name}_loss"], rel=1e-6)
        nll = naive(make_model(TOKENIZER), rows, CONTENT, coeff=1.0)[1]
        assert logs[f"eval_{name}_echo/nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.slow
def test_the_guard_lowers_the_coefficient(tokens, tmp_path):
    """On rows that can only be memorised. A cloned agent's entropy says nothing."""
    args = config(
        tmp_path, eval_strategy="steps", eval_steps=4, max_steps=24, learning_rate=2e-2, per_device_train_batch_size=2
    )
    echo = EchoConfig(2.0, guard={"k": 1, "share": 0.999})
    trainer, _ = ours(tokens[:2], args, echo, eval_dataset=Dataset.from_list(tokens[4:]))
    coefficients = [row["echo/coeff"] for row in trainer.state.log_history if "echo/coeff" in row]
    assert coefficients[:4] == [2.0] * 4
    assert coefficients[-1] < 2.0
    assert trainer.state.stateful_callbacks["wm_guard"]["state"]["multiplier"] < 1


# -- what is refused ------------------------------------------------------------------------------------------------------------


def image(rows):
    return [{**row, "image": "x"} for row in rows]


REFUSED = {
    "zero_variance_groups": ({"zero_variance_groups": "drop"}, {}, "no groups of rollouts; leave it out"),
    "refill": ({"zero_variance_groups": "refill"}, {}, "echo_zero_variance_groups is refill"),
    "tempered": ({"tempered": True}, {}, "echo_tempered is true, and fine-tuning samples at no temperature"),
    "tools": ({"tools": ["loook"]}, {}, "there is no tool 'loook'; did you mean 'look'"),
    "nothing": (
        {"roles": ["system"]},
        {},
        r"the objective has no token to train on: roles \['system'\] leaves out",
    ),
    "openenv": (
        {"preset": "openenv"},
        {"gradient_accumulation_steps": 2},
        "preset openenv divides by the tokens",
    ),
    "wrapped": (
        {"normalization": "per_trajectory"},
        {"packing": True, "packing_strategy": "wrapped", "max_length": 300},
        "packing_strategy wrapped cuts dialogues, and normalization per_trajectory",
    ),
    "split": (
        {"include_truncated": False},
        {"packing": True, "packing_strategy": "bfd_split", "max_length": 300},
        "packing_strategy bfd_split cuts dialogues, and include_truncated False",
    ),
    "smoothing": ({}, {"label_smoothing_factor": 0.1}, "label_smoothing_factor takes the place of"),
    "unprepared": (
        {},
        {"dataset_kwargs": {"skip_prepare_dataset": True}},
        "skip_prepare_dataset: true} takes the place of",
    ),
    "guard": ({"guard": True}, {}, "guard watches evaluations, and the run has none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(tokens, tmp_path, name):
    options, fields, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as error:
        ours(tokens, config(tmp_path, **fields), EchoConfig(**{"coeff": 0.5, **options}))
    assert "\n" not in str(error.value)


def test_rows_that_cannot_be_followed_are_refused(tokens, tmp_path, monkeypatch):
    def refused(message, rows=tokens, **kwargs):
        data = kwargs.pop("train_dataset", None) or Dataset.from_list(rows)
        args = kwargs.pop("args", config(tmp_path))
        with pytest.raises(UserError, match=message) as error:
            WorldModelSFTTrainer(
                make_model(TOKENIZER),
                args,
                train_dataset=data,
                processing_class=TOKENIZER,
                world_model=EchoConfig(0.5),
                **kwargs,
            )
        assert "\n" not in str(error.value)

    refused("is a stream", train_dataset=Dataset.from_list(tokens).to_iterable_dataset())
    refused("the rows have images", rows=image(tokens))
    refused("compute_loss_func takes the place", compute_loss_func=lambda *_, **__: 0)
    refused("data_collator takes the place", data_collator=lambda rows: rows)
    bare = [{name: row[name] for name in ("input_ids", "assistant_masks")} for row in tokens]
    refused("the training set has no observations", rows=bare)
    refused("row 0: env_spans", rows=[{**row, "env_spans": [{"start": 9}]} for row in tokens])
    refused("the same thing; give one of them", args=config(tmp_path, WorldModelSFTConfig, echo_coeff=0.1))
    monkeypatch.setattr(trl, "__version__", "1.15.0")
    refused("SFTTrainer needs trl>=1.16.0, and trl 1.15.0 is installed")


def test_tokens_that_are_not_the_messages_are_refused(tmp_path, monkeypatch):
    """A template of the row's own, or a host that tokenises otherwise, must not shift the spans."""
    made = PreTrainedTokenizerFast.apply_chat_template

    def other(self, conversation, tokenize=True, **kwargs):
        found = made(self, conversation, tokenize=tokenize, **kwargs)
        if tokenize and kwargs.get("return_assistant_tokens_mask"):
            found["input_ids"][-1] += 1
        return found

    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", other)
    with pytest.raises(UserError, match="train dataset, row 0: the tokens of a dialogue are not those of its messages"):
        ours(messages(), config(tmp_path, assistant_only_loss=True), EchoConfig(0.5))


@pytest.mark.parametrize(
    ("name", "value"), [("turn_budget", {"start": 3}), ("look_ahead", {"a": {}}), ("max_lost", 0.1)]
)
def test_settings_of_episodes_are_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=f"{name} is of episodes"):
        config(tmp_path, WorldModelSFTConfig, **{name: value})


def test_the_list_of_hooks_is_closed():
    from support.upstream import taken_from_host
    from wm_plugin.hosting.hooks import missing_hooks
    from wm_plugin.trl.term import EvaluatedMixin, TermMixin

    names = {hook.path.removeprefix("SFTTrainer.") for hook in sft_support.HOOKS}
    for one in (WorldModelSFTTrainer, TermMixin, EvaluatedMixin):
        assert taken_from_host(one, SFTTrainer) <= names
    assert missing_hooks(sft_support.HOOKS) == []


# -- ranks, and the whole way from a file of rollouts ---------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_count_together(tokens, tmp_path):
    """Unequal shares: one rank's rows have most of the observations, or all of them."""
    from on_trl.test_distributed import launch

    silent = sorted(tokens, key=lambda row: len(row["env_spans"]))  # ranks take rows in turn; the first one has no span
    two = [silent[0], silent[-1]]
    cases = [
        {"rows": tokens, "fields": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}},
        {"rows": two, "fields": {"per_device_train_batch_size": 1}},
    ]
    for case, result in zip(cases, launch("sft_on_trl.py", cases, tmp_path)["cases"], strict=True):
        agent, environment, wanted = naive(make_model(TOKENIZER), case["rows"], CONTENT, coeff=0.7)
        assert result["ranks"] == 2
        assert result["micro_batches"] == case["fields"].get("gradient_accumulation_steps", 1)
        assert result["logged"]["loss"] == pytest.approx(agent + 0.7 * environment, rel=1e-5)
        assert result["logged"]["echo/loss"] == pytest.approx(0.7 * environment, rel=1e-5)
        assert result["logged"]["echo/nll"] == pytest.approx(environment, rel=1e-5)
        assert torch.allclose(
            torch.tensor(result["gradient"]), wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max())
        )


@pytest.mark.slow
def test_verl_finds_the_same(tmp_path):
    """`on_verl/test_sft_term.py` has the same rows, model and figures."""
    tokenizer = read_tokenizer()
    build(write_rollouts(tmp_path / "rollouts.jsonl"), "imitation", "trl", tmp_path / "rows.jsonl", tokenizer=tokenizer)
    trainer = WorldModelSFTTrainer(
        agreement_model(tokenizer).float(),
        config(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4),
        train_dataset=Dataset.from_json(str(tmp_path / "rows.jsonl")),
        processing_class=tokenizer,
        world_model=EchoConfig(0.5),
    )
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["echo/nll"] == pytest.approx(AGREED[1], rel=1e-6)
    assert row["loss"] == pytest.approx(AGREED[0] + 0.5 * AGREED[1], rel=1e-6)


def test_a_file_of_settings_starts_it(tokens, tmp_path, policy, monkeypatch, capsys):
    """`wm train` with rows that the commands made of a file of rollouts."""
    from wm_plugin.cli.main import main as wm
    from wm_plugin.lab.tiny.__main__ import main as tiny
    from wm_plugin.trl.train import main

    monkeypatch.chdir(tmp_path)
    tiny(["rollouts", "--out", "grid.jsonl", "--count", "8"])
    assert wm(["data", "convert", "grid.jsonl", "--out", "all.jsonl"]) == 0
    assert (
        wm(
            [
                "data",
                "build",
                "all.jsonl",
                "--as",
                "imitation",
                "--host",
                "trl",
                "--tokenizer",
                str(policy),
                "--out",
                "rows.parquet",
            ]
        )
        == 0
    )
    settings = {
        "trainer": "sft",
        "model_name_or_path": str(policy),
        "datasets": [{"path": "parquet", "data_files": "rows.parquet"}],
        "world_model": {"tools": {"coeff": 0.5, "tools": ["move"]}},
        "output_dir": "out",
        "max_steps": 2,
        "max_length": None,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    capsys.readouterr()
    assert main(["--config", "run.yaml", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])["last"][0]
    assert last["echo/tools/coeff"] == 0.5
    assert last["echo/tools/tool/move/tokens"] == last["echo/tools/tokens"] > 0
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert main(["--config", "run.yaml", "--environment", "grid"]) == 2
    assert "environment is not of trainer: sft" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["agent_sft_echo", "agent_sft_echo_tiny"])
def test_wm_train_reads_the_recipe(name):
    from support.scripts import trl_words
    from wm_plugin.trl import train

    script, args, _, mixture = train.parse([*trl_words(name), "--use_cpu", "true", "--bf16", "false"])
    (objective,) = args.objectives().values()
    assert (script.trainer, objective.coeff) == ("sft", 1.0)
    assert mixture.datasets[0].data_files == f"runs/{name}/trl.parquet"
