"""What our adapter relies on in TRL, and what it refuses.

Everything here is decided when the trainer is made: a run that could not be exact stops before its first step.
"""

import logging
from functools import cache
from textwrap import shorten
from typing import Any

import torch
import transformers
import trl
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOTrainer

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting import hooks
from wm_plugin.hosting.annealing import Strength, TurnBudget
from wm_plugin.hosting.config import check_tool_names
from wm_plugin.hosting.dialogues import check_objectives
from wm_plugin.hosting.hooks import Hook
from wm_plugin.hosting.predictions import prediction_reward
from wm_plugin.hosting.tags import takes_tags
from wm_plugin.hosting.world import layers_of, missing_columns, tool_names
from wm_plugin.objectives.guard import GuardConfig
from wm_plugin.objectives.run import Objectives
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.trl import _compat
from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.trl.versions import ASYNC_GONE, SUPPORTED, of_release, untested

logger = logging.getLogger(__name__)

_TRAINER = "GRPOTrainer"
# Everything that we override, call or read upstream. A test closes the list and pins each signature.
HOOKS = (
    Hook("trl", f"{_TRAINER}.compute_loss", ("model", "inputs", "return_outputs", "num_items_in_batch")),
    Hook("trl", f"{_TRAINER}._generate_and_score_completions", ("inputs",)),
    Hook("trl", f"{_TRAINER}._calculate_rewards", ("inputs", "prompts", "completions", "completion_ids_list")),
    Hook("trl", f"{_TRAINER}._get_per_token_logps_and_entropies"),
    Hook("trl", f"{_TRAINER}._prepare_inputs", ("generation_batch",)),
    Hook("trl", f"{_TRAINER}._log_completion_extra", ("column", "values")),
    Hook("trl", f"{_TRAINER}._tool_call_loop", ("completions",)),
    Hook("trl", f"{_TRAINER}._generate_single_turn", ("prompt_ids",)),
    Hook("trl", f"{_TRAINER}._get_tool_suffix_ids", ("tool_messages",)),
    Hook("trl", f"{_TRAINER}.log", ("logs",)),
    Hook("trl", f"{_TRAINER}.get_batch_samples"),
    Hook("trl", f"{_TRAINER}.evaluate", ("eval_dataset", "ignore_keys", "metric_key_prefix")),
    Hook("trl", f"{_TRAINER}.add_callback"),
    *(
        Hook("trl", f"{_TRAINER}.{attribute}")
        for attribute in (
            "_async_tool_dicts",
            "_buffered_inputs",
            "_metrics",
            "_step",
            "_sync_tool_dicts",
            "accelerator",
            "args",
            "chat_template",
            "chat_template_kwargs",
            "environments",
            "eval_dataset",
            "is_deepspeed_enabled",
            "is_in_train",
            "max_completion_length",
            "max_tool_calling_iterations",
            "model",
            "num_generations",
            "num_generations_eval",
            "num_iterations",
            "optimizer",
            "optimizer_cls_and_kwargs",
            "processing_class",
            "reward_func_names",
            "reward_funcs",
            "reward_weights",
            "rollout_func",
            "state",
            "tools",
            "train_dataset",
        )
    ),
)

_ASYNC = "trl.experimental.async_grpo"
# The same of the asynchronous trainer, in the releases that have all of it: `_compat.ASYNC_ROWS` and newer.
ASYNC_HOOKS = (
    Hook(f"{_ASYNC}.async_grpo_trainer", "AsyncGRPOTrainer.compute_loss", ("model", "inputs", "return_outputs")),
    *(
        Hook(f"{_ASYNC}.async_grpo_trainer", f"AsyncGRPOTrainer.{name}")
        for name in (
            "_metrics",
            "_prepare_inputs",
            "accelerator",
            "add_callback",
            "args",
            "get_batch_samples",
            "get_train_dataloader",
            "is_deepspeed_enabled",
            "log",
            "model",
            "optimizer",
            "optimizer_cls_and_kwargs",
            "processing_class",
            "rollout_worker",
            "state",
        )
    ),
    Hook(
        f"{_ASYNC}.async_rollout_worker",
        "_AsyncRolloutLoop._generate_one",
        ("prompt", "tool_dict", "tools", "group_id"),
    ),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._generate_one_turn", ("prompt_ids",)),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._execute_tool_calls", ("tool_calls", "tool_dict")),
    Hook(f"{_ASYNC}.async_rollout_worker", "parse_response", ("tokenizer", "ids", "prefix", "tools")),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._score_group", ("group",)),
    Hook(f"{_ASYNC}.async_rollout_worker", "_AsyncRolloutLoop._push_metrics", ("values",)),
    *(
        Hook(f"{_ASYNC}.async_rollout_worker", path)
        for path in (
            "_AsyncRolloutLoop.chat_template",
            "_AsyncRolloutLoop.chat_template_kwargs",
            "_AsyncRolloutLoop.eos_token_ids",
            "_AsyncRolloutLoop.max_tool_calling_iterations",
            "_AsyncRolloutLoop.run",
            "_AsyncRolloutLoop.tokenizer",
            "AsyncRolloutWorker._loop_cls",
            "RolloutGroup.completions_sequences",
            "RolloutSample.metrics",
            "TrainingSequence.input_ids",
        )
    ),
    Hook(f"{_ASYNC}.packing", "TreeRow.pack"),
    Hook(f"{_ASYNC}.packing", "TreeRow.samples"),
)

# The same of its rollouts by agents that own their loop; they need OpenEnv.
HARNESS_HOOKS = (
    Hook(
        f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop._generate_one", ("prompt", "tool_dict", "tools", "group_id")
    ),
    Hook(f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop._run_session", ("prompt", "group_id")),
    Hook(
        f"{_ASYNC}.openenv_harness",
        "_HarnessRolloutLoop._sample_turn",
        ("turns", "turn_times", "messages", "tools", "sampling"),
    ),
    Hook(f"{_ASYNC}.openenv_harness", "_HarnessRolloutLoop", ("rollout_reward_fn",)),
    *(
        Hook(f"{_ASYNC}.openenv_harness", path)
        for path in (
            "_HarnessRolloutLoop._fork_threshold_tokens",
            "_HarnessRolloutLoop._push_metrics",
            "HarnessRolloutOutcome.env_reward",
            "HarnessRolloutOutcome.timed_out",
            "HarnessRolloutOutcome.trace",
        )
    ),
    Hook(f"{_ASYNC}.async_rollout_worker", "_chain_to_sequences", ("turns", "rollout_id", "fork_threshold")),
    *(
        Hook(f"{_ASYNC}.async_rollout_worker", path)
        for path in (
            "TrainingSequence.old_log_probs",
            "TurnRecord.output_ids",
            "TurnRecord.output_log_probs",
            "TurnRecord.output_mask",
            "TurnRecord.prompt_ids",
        )
    ),
)


# The same of the SFT trainer, in the releases that have all of it: `_compat.SFT_HEAD` and newer.
_SFT = "SFTTrainer"
SFT_HOOKS = (
    Hook("trl", f"{_SFT}.compute_loss", ("model", "inputs", "return_outputs", "num_items_in_batch")),
    Hook(
        "trl",
        f"{_SFT}._prepare_dataset",
        ("dataset", "processing_class", "args", "packing", "formatting_func", "dataset_name"),
    ),
    Hook("trl", f"{_SFT}.evaluate", ("eval_dataset", "ignore_keys", "metric_key_prefix")),
    Hook("trl.trainer.utils", "FusedCausalLMOutput", ("log_probs", "entropy", "is_top1", "label_mask")),
    *(
        Hook("trl", f"{_SFT}.{name}")
        for name in (
            "_metrics",
            "accelerator",
            "add_callback",
            "args",
            "chat_template",
            "data_collator",
            "get_batch_samples",
            "is_deepspeed_enabled",
            "is_in_train",
            "log",
            "model",
            "model_accepts_loss_kwargs",
            "optimizer",
            "optimizer_cls_and_kwargs",
            "processing_class",
            "state",
        )
    ),
)


def missing_hooks() -> list[str]:
    """Return the hooks that the installed TRL lacks or has changed, by name, with what moved."""
    return hooks.missing_hooks(HOOKS)


def hooks_problem() -> str | None:
    """Return what to say of a TRL that lacks a hook, and the way out; None if it has all of them."""
    if moved := missing_hooks():
        return (
            f"trl {trl.__version__} lacks what the world-model term needs: {'; '.join(moved)}; install another version"
        )
    return None


@cache
def warn_untested() -> None:
    """Say once in a process that this TRL is newer than those that were tested."""
    if (text := untested(_compat.installed())) and missing_hooks() == []:
        logger.warning(text)


def async_problem() -> str | None:
    """Return what to say of a TRL whose asynchronous trainer cannot carry the term, and the way out; None if it can."""
    if _compat.installed() < _compat.ASYNC_ROWS:
        return (
            f"the world-model term on AsyncGRPOTrainer needs trl>={_compat.ASYNC_ROWS}, and trl {trl.__version__} is "
            "installed; install it, or use WorldModelGRPOTrainer"
        )
    if of_release(_compat.installed()) >= ASYNC_GONE:
        return (
            f"the world-model term on AsyncGRPOTrainer needs trl<{ASYNC_GONE}, and trl {trl.__version__} is installed; install "
            "an older one, or use WorldModelGRPOTrainer"
        )
    if moved := hooks.missing_hooks(ASYNC_HOOKS):
        return (
            f"trl {trl.__version__} lacks what the world-model term on AsyncGRPOTrainer needs: {'; '.join(moved)}; install "
            "another version, or use WorldModelGRPOTrainer"
        )
    return None


def require_async() -> None:
    """Raises UserError where `async_problem` has something to say."""
    if problem := async_problem():
        raise UserError(problem)


def require_harness() -> None:
    """Raises UserError where the installed TRL or OpenEnv lacks what the term needs of the rollouts of agents."""
    if moved := hooks.missing_hooks(HARNESS_HOOKS):
        raise UserError(
            f"trl {trl.__version__} lacks what the world-model term on HarnessRolloutWorker needs: {'; '.join(moved)}; "
            "install another version"
        )


def require_sft() -> None:
    """Raises UserError where the installed TRL's SFT trainer cannot carry the term, with the way out."""
    if _compat.installed() < _compat.SFT_HEAD:
        raise UserError(
            f"the world-model term on SFTTrainer needs trl>={_compat.SFT_HEAD}, and trl {trl.__version__} is installed; "
            "install it"
        )
    if moved := hooks.missing_hooks(SFT_HOOKS):
        raise UserError(
            f"trl {trl.__version__} lacks what the world-model term on SFTTrainer needs: {'; '.join(moved)}; install another "
            "version"
        )


def has_gpu() -> bool:
    return torch.cuda.is_available()


def check_trainer_class(trainer: Any) -> None:
    if isinstance(trainer, GRPOTrainer):
        return
    name = type(trainer).__name__
    if any(cls.__name__ == "AsyncGRPOTrainer" for cls in type(trainer).__mro__):
        raise UserError(
            f"{name} is an AsyncGRPOTrainer and no GRPOTrainer: WorldModelMixin does not fit it; derive it from "
            f"wm_plugin.trl.WorldModelAsyncGRPOTrainer (trl>={_compat.ASYNC_ROWS})"
        )
    raise UserError(
        f"{name} is not a GRPOTrainer: the world-model term needs the log-probabilities of environment tokens, which other "
        "trainers do not compute; mix WorldModelMixin into a GRPOTrainer subclass"
    )


def check_arguments(model: Any = None, *, tools: Any = None, environment_factory: Any = None, **_: Any) -> None:
    """Refuse arguments of a trainer that the host fails on with a traceback."""
    if isinstance(model, str) and is_missing_folder(model):
        raise UserError(f"model is {shown(model)}: there is no such folder")
    several = isinstance(environment_factory, dict)
    for make in environment_factory.values() if several else [environment_factory]:
        if make is not None and not callable(make):
            name = type(make).__name__
            raise UserError(
                f"environment_factory is an instance of {name}, and every episode has one of its own; write {name}"
            )
    for tool in tools or ():
        if isinstance(tool, type) or not callable(tool):
            raise UserError(
                f"tools has {shown(tool)}, and a tool is a function; an environment's class goes into environment_factory (in "
                "a file, environment)"
            )


def check_rows(train: Any, held_out: Any, *, environments: bool) -> None:
    """Refuse rows that the host would train on for no step, or fail on in the first.

    Args:
        train, held_out: as a trainer takes them; None: not given.
        environments: whether there is one, whose `reset` may give the prompts.
    """
    sets = held_out.items() if isinstance(held_out, dict) else [("", held_out)]
    named = {f"the evaluation set {name!r}" if name else "the evaluation set": rows for name, rows in sets}
    for name, rows in {"the training set": train, **named}.items():
        if rows is None:
            continue
        if not isinstance(rows, IterableDataset) and not len(rows):
            raise UserError(f"{name} is empty; give it rows")
        columns = rows.column_names
        if columns and "prompt" not in columns and not environments:
            raise UserError(
                f"{name} has no column 'prompt'{nearest('prompt', columns)}; its columns: {_listed(columns)}"
            )


def _listed(names: Any) -> str:
    return shorten(", ".join(map(repr, names)), 200)


def has_tokens(trainer: Any) -> bool:
    """Return whether a rollout may have environment tokens."""
    return bool(trainer.tools) or trainer.rollout_func is not None


def check(trainer: Any, objectives: Objectives) -> None:
    """Refuse what is not known to be exact."""
    args = trainer.args
    if problem := hooks_problem():
        raise UserError(problem)
    if args.use_liger_kernel and not _compat.liger_has_logps():
        raise UserError(
            f"use_liger_kernel on trl {trl.__version__} computes no per-token log-probabilities; "
            f"write use_liger_kernel: false, or install trl>={_compat.LIGER_WITH_LOGPS}"
        )
    _check_temperature(trainer, objectives)
    _check_likelihood(trainer, objectives)
    if not has_tokens(trainer):
        raise UserError(
            "no environment tokens can occur: pass environment_factory, tools or a rollout_func (with env_mask) to the trainer, "
            "or use coeff 0 (in a YAML file: environment, tools or rollout_func; echo_coeff: 0)"
        )
    generation, accumulation = args.steps_per_generation * trainer.num_iterations, args.gradient_accumulation_steps
    if generation % accumulation and accumulation % generation:
        raise UserError(
            f"steps_per_generation x num_iterations is {generation} and gradient_accumulation_steps is {accumulation}: an "
            "optimizer step would take parts of two generation batches, and its tokens could not be counted before it starts; "
            "make one a multiple of the other"
        )
    if trainer.rollout_func is None:
        _check_tools({tool.__name__ for tool in trainer.tools}, objectives)
    _check_columns(trainer)
    if objectives.refills:
        _check_refill(trainer)
    for one in objectives.values():
        if isinstance(one.guard, GuardConfig) and one.active:
            _check_guard(trainer, one.guard)


def check_async(trainer: Any, objectives: Objectives, tools: set[str], worker: Any) -> None:
    """The same on the asynchronous trainer.

    Args:
        tools: the names of its tools and of its environments'.
        worker: a rollout worker of the user's own, whose tools are not known.

    Raises:
        UserError: one line with the reason and the way out.
    """
    _check_temperature(trainer, objectives)
    _check_likelihood(trainer, objectives)
    if objectives.refills:
        raise UserError(
            "zero_variance_groups refill asks for further rollouts of the policy that is trained, and those of AsyncGRPOTrainer "
            "come from a queue; write zero_variance_groups: drop"
        )
    if any(one.select_rollout for one in objectives.values()):
        raise UserError(
            "select_rollout reads a completion's messages, which AsyncGRPOTrainer's samples do not have; leave it out, or use "
            "WorldModelGRPOTrainer"
        )
    if any(one.guard is not None and one.active for one in objectives.values()):
        raise UserError(
            "guard watches evaluations, and AsyncGRPOTrainer has none; leave it out, or use WorldModelGRPOTrainer"
        )
    if not tools and worker is None:
        raise UserError(
            "no environment tokens can occur: pass environment_factory or tools to the trainer, or use coeff 0"
        )
    if tools:
        _check_tools(tools, objectives)
    if not objectives.active and trainer.accelerator.device.type != "cpu":
        raise UserError(
            f"on {trainer.accelerator.device.type} AsyncGRPOTrainer computes the log-probabilities of the tokens alone that it "
            "trains on"
        )


def check_sft_rows(
    args: Any,
    data_collator: Any = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    processing_class: Any = None,
    compute_loss_func: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    """Refuse rows of the SFT trainer whose tokens cannot be followed to the loss, and losses that are not by token.

    The arguments are the trainer's, in its order.
    """
    sets = eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]
    for rows in (one for one in (train_dataset, *sets) if one is not None):
        if isinstance(rows, IterableDataset):
            raise UserError("the training or an evaluation set is a stream, whose tokens have no places; load it whole")
        if {"image", "images"} & {*(rows.column_names or ())}:
            raise UserError("the rows have images, whose tokens have no text to locate; leave them out, or use coeff 0")
    if isinstance(processing_class, ProcessorMixin):
        raise UserError(
            f"{type(processing_class).__name__} is a processor of images; pass its tokenizer, or use coeff 0"
        )
    unprepared = (getattr(args, "dataset_kwargs", None) or {}).get("skip_prepare_dataset")
    for name, given in {
        "data_collator": data_collator is not None,
        "compute_loss_func": compute_loss_func is not None,
        "dataset_kwargs: {skip_prepare_dataset: true}": unprepared,
        "label_smoothing_factor": getattr(args, "label_smoothing_factor", 0),
    }.items():
        if given:
            raise UserError(
                f"{name} takes the place of what the world-model term is added to; leave it out, or use coeff 0"
            )


def check_sft(trainer: Any, objectives: Objectives, tools: set[str]) -> None:
    """Refuse what is not known to be exact on the SFT trainer.

    Args:
        tools: the names of tools in the rows.
    """
    args = trainer.args
    _check_likelihood(trainer, objectives)
    check_objectives(objectives, "echo_")
    _check_tools(tools, objectives)
    if args.gradient_accumulation_steps > 1 and not trainer.model_accepts_loss_kwargs:
        raise UserError(
            f"{type(trainer.model).__name__} takes no num_items_in_batch, so that the host divides the loss by "
            "gradient_accumulation_steps, and the term with it; write gradient_accumulation_steps: 1"
        )
    if args.packing and args.packing_strategy == "wrapped":
        for one in objectives.values():
            ends = {
                "normalization": one.normalization == "per_trajectory",
                "include_truncated": not one.include_truncated,
            }
            for name in (name for name, needs in ends.items() if needs):
                raise UserError(
                    f"packing_strategy wrapped cuts dialogues anywhere, and {name} {getattr(one, name)} asks where they end; "
                    "write packing_strategy: bfd"
                )
    for one in objectives.values():
        if isinstance(one.guard, GuardConfig) and one.active:
            _check_guard(trainer, one.guard)


def names_of_tools(tools: list[Any] | None, environments: Any) -> set[str]:
    """Return the names of a trainer's tools and of its environments'.

    Args:
        environments: a function that makes an environment, or {name: function}; a class is asked without making one.

    Raises:
        UserError: an environment acts by tags.
    """
    names = {tool.__name__ for tool in tools or ()}
    made = environments.values() if isinstance(environments, dict) else [environments]
    for make in made:
        if make is None:
            continue
        cls = make if isinstance(make, type) else type(make())
        if prediction_reward(cls) is not None:
            raise UserError(
                f"{cls.__name__} has a prediction_reward, which the rollouts of AsyncGRPOTrainer do not score; leave it out, or "
                "use WorldModelGRPOTrainer"
            )
        if takes_tags(cls):
            raise UserError(
                f"{cls.__name__} takes actions by tags, which the rollouts of AsyncGRPOTrainer do not read; write protocol: "
                "tools, or use WorldModelGRPOTrainer"
            )
        names |= set(tool_names(cls))
    return names


def _check_temperature(trainer: Any, objectives: Objectives) -> None:
    args = trainer.args
    if args.temperature != 1.0 and not all(one.tempered for one in objectives.values()):
        raise UserError(
            f"temperature is {args.temperature}: the trainer's log-probabilities are divided by it and are not the model's; "
            "write temperature: 1.0, or echo_tempered: true (EchoConfig(tempered=True)) for the tempered likelihood"
        )


def _check_likelihood(trainer: Any, objectives: Objectives) -> None:
    """What every trainer of TRL's must be for the tokens, their log-probabilities and their number to be known."""
    if problem := SUPPORTED.problem(trl.__version__):
        raise UserError(problem)
    objectives.check_split(trainer.args.gradient_accumulation_steps)
    tokenizer = trainer.processing_class
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(
            f"{type(tokenizer).__name__}: vision-language processors are not supported by the world-model term "
            "(image tokens in tool results have no text to locate); pass a tokenizer, or use coeff 0"
        )
    if not tokenizer.is_fast:
        raise UserError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it gives no character offsets, by which "
            "the content of tool results is located; load the fast one"
        )
    _check_parallelism(trainer.accelerator)


def _check_parallelism(accelerator: Any) -> None:
    deepspeed = getattr(accelerator.state, "deepspeed_plugin", None)
    split = (deepspeed.deepspeed_config.get("tensor_parallel") or {}).get("autotp_size") if deepspeed else None
    if (ranks := (split or 1) * _compat.ranks_that_share_a_batch(accelerator)) > 1:
        raise UserError(
            f"{ranks} ranks share a batch (tensor, context or sequence parallelism): the count of "
            "environment tokens is only known to be exact under data parallelism (DDP, FSDP, ZeRO); set their sizes to 1"
        )


def _check_tools(known: set[str], objectives: Objectives) -> None:
    for one in objectives.values():
        check_tool_names(one.tool_names, known, "echo_tools")


def _check_refill(trainer: Any) -> None:
    args = trainer.args
    if isinstance(trainer.train_dataset, IterableDataset):
        raise UserError(
            "zero_variance_groups refill draws further prompts from the training set, and a stream has no n-th row; load it "
            "whole, or write zero_variance_groups: drop"
        )
    if args.scale_rewards == "batch" or args.multi_objective_aggregation == "normalize_then_sum":
        raise UserError(
            "zero_variance_groups refill replaces single groups, and scale_rewards: batch and multi_objective_aggregation: "
            "normalize_then_sum make the advantages of all groups depend on each other; write scale_rewards: group and "
            "multi_objective_aggregation: sum_then_normalize"
        )


def _check_guard(trainer: Any, guard: GuardConfig) -> None:
    if trainer.eval_dataset is None or trainer.args.eval_strategy == "no":
        raise UserError(
            "guard watches evaluations, and the run has none; give an eval_dataset and write eval_strategy: steps and eval_steps "
            "(in a YAML file: eval_rows, or the test split of dataset_name)"
        )
    sets = list(trainer.eval_dataset) if isinstance(trainer.eval_dataset, dict) else []
    for name in guard.sets or ():
        if name not in sets:
            raise UserError(f"guard.sets: there is no evaluation set {name!r}{nearest(name, sets)}")


def check_turn_budget(trainer: Any, argument: TurnBudget | None) -> TurnBudget | None:
    """Return the turn budget of a run, from the argument or the config.

    Raises:
        UserError: both are given, or there are no turns to count.
    """
    args = trainer.args
    configured = args.make_turn_budget() if isinstance(args, WorldModelGRPOConfig) else None
    if argument is not None and not isinstance(argument, TurnBudget):
        raise UserError(f"turn_budget is {shown(argument)}; write TurnBudget(start=30, every=100)")
    if argument is not None and configured is not None:
        raise UserError("turn_budget=TurnBudget(...) and the config's turn_budget are the same thing; give one of them")
    budget = configured if argument is None else argument
    if budget is None:
        return None
    if args.max_tool_calling_iterations is not None:
        raise UserError("turn_budget says what max_tool_calling_iterations says; leave one of them out")
    if not _compat.has_environments(trainer):
        raise UserError("turn_budget counts turns in an environment, and the run has none; give an environment_factory")
    return budget


def check_control(trainer: Any) -> Strength | None:
    """Return the factor of the rates of a run's perturbations, if its environments have a curriculum.

    Raises:
        UserError: they have several.
    """
    curricula = {one for environment in _compat.all_environments(trainer) for one in _curricula(environment)}
    if len(curricula) > 1:
        raise UserError("the environments' controls have different curricula; write one control for all of them")
    if not curricula:
        return None
    return Strength(curricula.pop())


def _curricula(environment: Any) -> list[Any]:
    options = [options for _, options, _ in layers_of(environment)]
    return [one.curriculum for one in options if getattr(one, "curriculum", None) is not None]


def check_no_curriculum(factories: Any) -> None:
    """Raise a UserError if an environment of the asynchronous trainer has a curriculum."""
    if any(map(_curricula, factories.values() if isinstance(factories, dict) else [factories])):
        raise UserError(
            "control.curriculum changes while the policy trains, and the rollouts of AsyncGRPOTrainer are made in a process that "
            "is not told; leave it out, or use WorldModelGRPOTrainer"
        )


def predictions_of(trainer: Any) -> Any:
    """Return the prediction reward of a run's environments; None if they have none.

    Raises:
        UserError: they have several, or some have one and others none.
    """
    found = {prediction_reward(environment) for environment in _compat.all_environments(trainer)}
    if len(found) > 1:
        raise UserError(
            "the environments have different prediction rewards: write one prediction_reward for all of them"
        )
    return next(iter(found), None)


def check_predictions(trainer: Any) -> Any:
    """Return the prediction reward of a run's environments; None if they have none.

    Raises:
        UserError: scores of turns cannot become advantages of their tokens in this run.
    """
    options, args = predictions_of(trainer), trainer.args
    if options is None:
        return None
    if _compat.installed() < _compat.ENVIRONMENT_POOLS:
        raise UserError(
            f"prediction_reward needs trl>={_compat.ENVIRONMENT_POOLS}, and trl {trl.__version__} is installed"
        )
    if options.of_turns and args.importance_sampling_level != "token":
        raise UserError(
            f"importance_sampling_level is {args.importance_sampling_level}: one ratio for all turns would put a turn's "
            "advantage on all tokens; write importance_sampling_level: token, or prediction_reward.level: sum"
        )
    if options.of_turns and args.use_liger_kernel:
        raise UserError(
            "use_liger_kernel takes one advantage a completion, and prediction_reward.level: turn has one a turn; write "
            "use_liger_kernel: false, or prediction_reward.level: sum"
        )
    return options


def check_tags(trainer: Any) -> bool:
    """Return whether a run's environments take WMAct's text protocol.

    Raises:
        UserError: some do and others do not, or this TRL shows tools in prompts whatever we do.
    """
    kinds = {takes_tags(environment) for environment in _compat.all_environments(trainer)}
    if True not in kinds:
        return False
    if len(kinds) > 1:
        raise UserError("some environments take actions by tags and others by tools: put all of them in tags, or none")
    if _compat.installed() < _compat.ENVIRONMENT_POOLS:
        raise UserError(
            f"protocol: tags needs trl>={_compat.ENVIRONMENT_POOLS}, and trl {trl.__version__} is installed"
        )
    return True


def _check_columns(trainer: Any) -> None:
    """A column that an environment's `reset` requires and the dataset lacks."""
    columns = trainer.train_dataset.column_names
    if columns is None:  # a stream whose columns are not known
        return
    environment = _compat.the_environment(trainer)  # with several a column may belong to some rows only
    if environment is not None and (missing := missing_columns(type(environment), columns)):
        raise UserError(missing)


def versions() -> dict[str, str]:
    return {"trl": trl.__version__, "transformers": transformers.__version__}
