"""What our adapter relies on in TRL, and what it refuses.

Everything here is decided when the trainer is made: a run that could not be exact stops before its first step.
"""

import logging
from collections.abc import Iterable
from functools import cache
from textwrap import shorten
from typing import Any

import torch
import transformers
import trl
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOTrainer

from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.hosting import hooks
from wm_plugin.hosting.annealing import Strength, TurnBudget
from wm_plugin.hosting.config import check_tool_names
from wm_plugin.hosting.hooks import Hook
from wm_plugin.hosting.tags import takes_tags
from wm_plugin.hosting.world import layers_of, missing_columns
from wm_plugin.objectives.guard import GuardConfig
from wm_plugin.objectives.run import Objectives
from wm_plugin.tokens.tokenizer import is_missing_folder
from wm_plugin.trl import _compat
from wm_plugin.trl.config import WorldModelGRPOConfig
from wm_plugin.trl.versions import SUPPORTED, untested

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
    check_temperature(trainer, objectives)
    check_likelihood(trainer, objectives)
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
        check_tools({tool.__name__ for tool in trainer.tools}, objectives)
    _check_columns(trainer)
    if objectives.refills:
        _check_refill(trainer)
    for one in objectives.values():
        if isinstance(one.guard, GuardConfig) and one.active:
            check_guard(trainer, one.guard)


def check_temperature(trainer: Any, objectives: Objectives) -> None:
    args = trainer.args
    if args.temperature != 1.0 and not all(one.tempered for one in objectives.values()):
        raise UserError(
            f"temperature is {args.temperature}: the trainer's log-probabilities are divided by it and are not the model's; "
            "write temperature: 1.0, or echo_tempered: true (EchoConfig(tempered=True)) for the tempered likelihood"
        )


def check_likelihood(trainer: Any, objectives: Objectives) -> None:
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


def check_tools(known: set[str], objectives: Objectives) -> None:
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


def check_guard(trainer: Any, guard: GuardConfig) -> None:
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


def predictions_of(environments: Iterable[Any]) -> Any:
    """Return the prediction reward of classes or instances of environments; None if they have none.

    Raises:
        UserError: they have several, or some have one and others none.
    """
    environments = list(environments)
    if not any(map(layers_of, environments)):
        return None
    from wm_plugin.trl import predictions

    return predictions.of(environments)


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
    environments = _compat.all_environments(trainer)
    if len(environments) != 1:  # with several a column may belong to some rows only
        return
    if missing := missing_columns(type(environments[0]), columns):
        raise UserError(missing)


def versions() -> dict[str, str]:
    return {"trl": trl.__version__, "transformers": transformers.__version__}
