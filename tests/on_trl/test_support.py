"""The upstream hooks that we rely on, each pinned by name, and what is refused when the trainer is made."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import trl
from transformers import PreTrainedTokenizerFast, ProcessorMixin
from trl import GRPOConfig, GRPOTrainer

import wm_plugin.trl
from support.on_trl import ToolEnvironment, config, dataset, make, make_tokenizer, reward, run
from support.upstream import taken_from_host
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.hooks import Hook
from wm_plugin.objectives import Objective, Objectives
from wm_plugin.trl import (
    WorldModelGRPOConfig,
    WorldModelGRPOTrainer,
    WorldModelMixin,
    _compat,
    async_support,
    doctor,
    support,
    versions,
)
from wm_plugin.trl.term import TermMixin

PINNED = {
    "compute_loss": "(self, model, inputs, return_outputs=False, num_items_in_batch=None)",
    "_generate_and_score_completions": "(self, inputs",
    "_calculate_rewards": "(self, inputs, prompts, completions, completion_ids_list)",
    "_get_per_token_logps_and_entropies": "(self, model",
    "_prepare_inputs": "(self, generation_batch",
    "_log_completion_extra": "(self, column: str, values: list)",
    "_tool_call_loop": "(self, prompts",
    "_get_tool_suffix_ids": "(self, tool_messages)",
    "log": "(self, logs",
    "get_batch_samples": "(self, epoch_iterator",
    "_generate_single_turn": "(self, prompt_ids",
    "evaluate": "(self, eval_dataset",
    "add_callback": "(self, callback",
}
NAMES = {hook.path.removeprefix("GRPOTrainer.") for hook in support.HOOKS}


@pytest.mark.parametrize("name", PINNED)
def test_hook_has_the_signature_that_we_override(name):
    signature = str(inspect.signature(getattr(GRPOTrainer, name)))
    assert signature.startswith(PINNED[name]), f"trl {trl.__version__}: GRPOTrainer.{name}{signature} has moved"


def test_the_list_of_hooks_is_closed():
    """What the adapter overrides, calls and reads is listed, and every method in the list has a pinned signature."""
    assert taken_from_host(WorldModelMixin, GRPOTrainer) | taken_from_host(TermMixin, GRPOTrainer) <= NAMES
    assert {name for name in NAMES if callable(getattr(GRPOTrainer, name, None))} == set(PINNED)
    assert support.missing_hooks() == []


def test_attributes_that_we_read_exist():
    trainer, _ = run(WorldModelGRPOTrainer, args={"max_steps": 1, "max_completion_length": 2})
    for name in NAMES - set(PINNED):
        assert hasattr(trainer, name), f"trl {trl.__version__}: GRPOTrainer.{name} is gone"


@pytest.mark.parametrize(
    "name", ["_sync_tool_dicts", "_async_tool_dicts", "environments", "max_tool_calling_iterations", "_tool_call_loop"]
)
def test_a_run_with_a_hook_taken_away_is_refused_at_construction(name, monkeypatch, caplog):
    moved = Hook("trl", f"GRPOTrainer.{name}_as_it_was")
    hooks = tuple(moved if hook.path == f"GRPOTrainer.{name}" else hook for hook in support.HOOKS)
    monkeypatch.setattr(support, "HOOKS", hooks)
    with pytest.raises(UserError, match=f"lacks what the world-model term needs: {moved} is gone; install") as error:
        ours()
    assert "\n" not in str(error.value)
    ours(EchoConfig(0.0))  # the host's own run
    assert f"episodes and environment tokens are not measured: trl {trl.__version__} lacks" in caplog.text


def test_without_a_hook_coefficient_0_is_the_hosts_own_run(monkeypatch):
    monkeypatch.setattr(support, "HOOKS", (*support.HOOKS, Hook("trl", "GRPOTrainer._no_such_hook")))
    trainer, _ = run(WorldModelGRPOTrainer, args={"max_steps": 1}, world_model=EchoConfig(0.0))
    assert not any(key.startswith(("echo", "wm/env")) for row in trainer.state.log_history for key in row)


def test_a_moved_hook_is_named(monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self, batch: None)
    monkeypatch.setattr(support, "HOOKS", (*support.HOOKS, Hook("trl", "GRPOTrainer._no_such_hook")))
    assert support.missing_hooks() == [
        "trl.GRPOTrainer._calculate_rewards no longer takes inputs, prompts, completions, completion_ids_list",
        "trl.GRPOTrainer._no_such_hook is gone",
    ]
    with pytest.raises(UserError, match="_calculate_rewards no longer takes"):
        ours()


def ours(echo=None, *, cls=WorldModelGRPOTrainer, **kwargs):
    return make(cls, world_model=EchoConfig(0.5) if echo is None else echo, **kwargs)


@pytest.fixture(scope="module")
def off():
    """A trainer at coefficient 0, which is checked as if it were at another."""
    return ours(EchoConfig(0.0))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"args": {"temperature": 0.7}}, r"temperature is 0.7.*write temperature: 1.0, or echo_tempered: true"),
        ({"echo": EchoConfig(1.0, ["run_cod"])}, "echo_tools: there is no tool 'run_cod'; did you mean 'run_code'?"),
        ({"echo": EchoConfig(1.0, {"zzz": 1.0})}, "there is 'lookup_doc', 'run_code'"),
        ({"environment": None}, "no environment tokens can occur"),
        ({"args": {"gradient_accumulation_steps": 3, "steps_per_generation": 2}}, "make one a multiple of the other"),
        ({"echo": {"coeff": 1.0}}, r"world_model is .*; write world_model=EchoConfig\(coeff=0.05\)"),
        ({"echo": Objective(coeff=1.0)}, r"world_model is .*; write world_model=EchoConfig\(coeff=0.05\)"),
        (
            {"args": {"cls": WorldModelGRPOConfig, "echo_coeff": 0.1}},
            "and echo_coeff are the same thing; give one of them",
        ),
    ],
)
def test_refused_at_construction(kwargs, message):
    with pytest.raises(UserError, match=message) as error:
        ours(**kwargs)
    assert "\n" not in str(error.value)


def test_liger_without_log_probabilities_is_refused(off, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.13.0")
    monkeypatch.setattr(off.args, "use_liger_kernel", True)
    with pytest.raises(UserError, match="use_liger_kernel on trl 1.13.0 computes no per-token log-probabilities"):
        support.check(off, Objectives({"": EchoConfig(0.5)}))


@pytest.mark.parametrize("version", ["0.29.0", "2.0.0"])
def test_a_trl_outside_the_range_is_refused(off, monkeypatch, version):
    monkeypatch.setattr(trl, "__version__", version)
    with pytest.raises(UserError, match=f"trl {version} is outside the supported range"):
        support.check(off, Objectives({"": EchoConfig(0.5)}))


@pytest.mark.parametrize("version", ["0.29.1", "1.0.0"])
def test_a_trl_that_is_too_old_to_import_is_refused_without_it(version, monkeypatch):
    found = SimpleNamespace(version=lambda name: version, PackageNotFoundError=ModuleNotFoundError)
    monkeypatch.setattr(versions, "metadata", found)
    with nullcontext() if version == "1.0.0" else pytest.raises(UserError, match=r"trl 0\.29\.1 .*1\.0\.0"):
        versions.refuse_old()


def test_a_slow_tokenizer_is_refused(monkeypatch):
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", property(lambda self: False))
    with pytest.raises(UserError, match="is a slow tokenizer"):
        ours()


def test_a_processor_of_images_is_refused(off, monkeypatch):
    class WithImages(ProcessorMixin):
        pass

    monkeypatch.setattr(off, "processing_class", object.__new__(WithImages))
    with pytest.raises(UserError, match="WithImages: vision-language processors are not supported"):
        support.check(off, Objectives({"": EchoConfig(0.5)}))


def test_ranks_that_share_a_batch_are_refused(off, monkeypatch):
    from accelerate.parallelism_config import ParallelismConfig

    monkeypatch.setattr(off.accelerator.state, "parallelism_config", ParallelismConfig(tp_size=2))
    with pytest.raises(UserError, match="2 ranks share a batch"):
        support.check(off, Objectives({"": EchoConfig(0.5)}))


def test_tensor_parallelism_of_deepspeed_is_refused(off, monkeypatch):
    plugin = SimpleNamespace(deepspeed_config={"tensor_parallel": {"autotp_size": 2}})
    monkeypatch.setattr(type(off.accelerator.state), "deepspeed_plugin", plugin, raising=False)
    with pytest.raises(UserError, match="2 ranks share a batch"):
        support.check(off, Objectives({"": EchoConfig(0.5)}))
    plugin.deepspeed_config = {}
    support.check(off, Objectives({"": EchoConfig(0.5)}))


def test_a_column_that_the_environment_needs():
    class Needs(ToolEnvironment):
        def reset(self, level, seed=0, **_):
            return None

    with pytest.raises(UserError, match="the dataset has no column 'level', which Needs.reset needs"):
        ours(environment=Needs)
    if _compat.installed() >= _compat.ENVIRONMENT_POOLS:  # of several, rows may name the other
        assert ours(environment={"one": Needs, "other": ToolEnvironment}).environment_factories


def test_a_template_that_hides_results_is_refused():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("message.content", "'fixed'")
    with pytest.raises(
        ValueError,
        match="does not support tool calling|does not write a tool result's content|Unrecognized chat template",
    ):
        ours(processing_class=tokenizer)


def test_other_trainers_are_refused():
    class NotGRPO(WorldModelMixin):
        pass

    with pytest.raises(UserError, match="NotGRPO is not a GRPOTrainer"):
        NotGRPO(world_model=EchoConfig(0.5))


def test_the_mixin_does_not_fit_the_asynchronous_trainer():
    asynchronous = pytest.importorskip("trl.experimental.async_grpo")

    class Mine(WorldModelMixin, asynchronous.AsyncGRPOTrainer):
        pass

    with pytest.raises(UserError, match="Mine is an AsyncGRPOTrainer.*WorldModelAsyncGRPOTrainer") as error:
        Mine("no/such-model", world_model=EchoConfig(0.5))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["WorldModelAsyncGRPOTrainer", "WorldModelAsyncGRPOConfig"])
@pytest.mark.parametrize(("version", "needs"), [("1.15.0", ">=1.16.0"), ("1.18.0", "<1.18"), ("1.18.0.dev0", "<1.18")])
def test_the_asynchronous_trainer_of_another_trl_is_refused(name, version, needs, monkeypatch):
    monkeypatch.setattr(trl, "__version__", version)
    with pytest.raises(
        UserError, match=f"AsyncGRPOTrainer needs trl{needs}, and trl {version} is installed; "
    ) as error:
        getattr(wm_plugin.trl, name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("version", "said"), [("1.16.0", 0), ("1.17.0", 1), ("1.18.2", 1)])
def test_a_trl_that_was_not_tested_is_said_once(version, said, monkeypatch, caplog):
    has_hooks = async_support.problem() is None  # an old release has none, whatever its number says here
    monkeypatch.setattr(trl, "__version__", version)
    support.warn_untested.cache_clear()
    for _ in range(2):
        support.warn_untested()
    assert caplog.text.count(f"trl {version} is newer than the releases that were tested (before 1.17)") == said
    check = doctor.checks()[0]
    assert (check.name, check.state) == ("trl", "warn" if said else "ok")
    asynchronous = next(check for check in doctor.checks() if check.name == "asynchronous training")
    assert (asynchronous.state == "ok") == (has_hooks and version < "1.18")


def test_a_loss_that_runs_two_forwards_stops_the_run():
    class Twice(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            super()._compute_loss(model, inputs)
            return super()._compute_loss(model, inputs)

    class Ours(WorldModelMixin, Twice):
        pass

    trainer = ours(cls=Ours, args={"max_steps": 1, "max_completion_length": 2})
    with pytest.raises(RuntimeError, match="2 times instead of once"):
        trainer.train()


def test_a_step_outside_training_is_refused():
    trainer = ours()
    trainer.model.train()
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="outside Trainer.train"):
        trainer._prepare_inputs([{"prompt": [{"role": "user", "content": "x"}]}] * 8)


def test_plain_config_class_is_enough():
    assert isinstance(ours(EchoConfig(0.1)).args, GRPOConfig)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"model": "./nope"}, "model is './nope': there is no such folder"),
        (
            {"environment_factory": ToolEnvironment()},
            "environment_factory is an instance of ToolEnvironment, and every",
        ),
        ({"environment_factory": {"a": ToolEnvironment()}}, "environment_factory is an instance of ToolEnvironment"),
        (
            {"tools": [ToolEnvironment]},
            "tools has .*ToolEnvironment.*, and a tool is a function; an environment's class goes",
        ),
    ],
    ids=["model", "instance", "instance of several", "class"],
)
def test_arguments_that_the_host_fails_on_are_one_line(arguments, reason):
    given = {"model": "x", "reward_funcs": [reward], "args": config(), "train_dataset": dataset()} | arguments
    with pytest.raises(UserError, match=reason) as error:
        WorldModelGRPOTrainer(**given)
    assert "\n" not in str(error.value)


def test_a_field_that_does_not_exist_is_named_with_the_nearest():
    with pytest.raises(UserError, match="WorldModelGRPOConfig has no field 'echo_coef'; did you mean 'echo_coeff'"):
        config(cls=WorldModelGRPOConfig, echo_coef=0.05)
