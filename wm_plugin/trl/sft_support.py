"""What TRL's SFT trainer must be for the world-model term to be exact: `WorldModelSFTTrainer` asks before the first step."""

from typing import Any

import trl
from datasets import IterableDataset
from transformers import ProcessorMixin

from wm_plugin.errors import UserError
from wm_plugin.hosting import hooks
from wm_plugin.hosting.dialogues import check_objectives
from wm_plugin.hosting.hooks import Hook
from wm_plugin.objectives.guard import GuardConfig
from wm_plugin.objectives.run import Objectives
from wm_plugin.trl import _compat, support

# What the trainer overrides or reads of the host's, in the releases that have all of it: `_compat.SFT_HEAD` and newer.
_SFT = "SFTTrainer"
HOOKS = (
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


def require() -> None:
    """Raises UserError where the installed TRL's SFT trainer cannot carry the term, with the way out."""
    if _compat.installed() < _compat.SFT_HEAD:
        raise UserError(
            f"the world-model term on SFTTrainer needs trl>={_compat.SFT_HEAD}, and trl {trl.__version__} is installed; "
            "install it"
        )
    if moved := hooks.missing_hooks(HOOKS):
        raise UserError(
            f"trl {trl.__version__} lacks what the world-model term on SFTTrainer needs: {'; '.join(moved)}; install another "
            "version"
        )


def check_rows(
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


def check(trainer: Any, objectives: Objectives, tools: set[str]) -> None:
    """Refuse what is not known to be exact on the SFT trainer.

    Args:
        tools: the names of tools in the rows.
    """
    args = trainer.args
    support.check_likelihood(trainer, objectives)
    check_objectives(objectives, "echo_")
    support.check_tools(tools, objectives)
    if args.gradient_accumulation_steps > 1 and not trainer.model_accepts_loss_kwargs:
        raise UserError(
            f"{type(trainer.model).__name__} takes no num_items_in_batch, so that the host divides the loss by "
            "gradient_accumulation_steps, and the term with it; write gradient_accumulation_steps: 1"
        )
    if args.packing and args.packing_strategy in ("wrapped", "bfd_split"):
        for one in objectives.values():
            ends = {
                "normalization": one.normalization == "per_trajectory",
                "include_truncated": not one.include_truncated,
            }
            for name in (name for name, needs in ends.items() if needs):
                raise UserError(
                    f"packing_strategy {args.packing_strategy} cuts dialogues, and {name} {getattr(one, name)} asks where they "
                    "end; write packing_strategy: bfd"
                )
    for one in objectives.values():
        if isinstance(one.guard, GuardConfig) and one.active:
            support.check_guard(trainer, one.guard)
