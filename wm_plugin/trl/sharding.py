"""Whether accelerate runs the engine that was asked for. On a CPU it leaves FSDP out without a word."""

import logging
import os
from typing import Any

logger = logging.getLogger(__name__)
# what a launcher sets, and the name of the engine
_SWITCHES = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
_SHARDED = ("FSDP", "DEEPSPEED", "XLA", "MEGATRON_LM")  # of accelerate's kinds of distribution


def warn(trainer: Any) -> None:
    """Say once, when a trainer is made, that it runs on something else than was asked for."""
    text = problem(trainer.args, trainer.accelerator.distributed_type.value)
    if text and os.environ.get("RANK", "0") == "0":  # processes that train alone are all the main one
        logger.warning(text)


def problem(args: Any, kind: str) -> str | None:
    """Return what to warn of, and the way out; None where what runs is what was asked for.

    Args:
        args: the trainer's arguments.
        kind: accelerate's `distributed_type`.
    """
    engine = "FSDP" if args.fsdp else "DeepSpeed" if args.deepspeed else switched_on()
    started = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    if kind == "NO" and started > 1:
        asked = f"{engine} was asked for, " if engine else ""
        return (
            f"{asked}{started} processes run, and each trains alone: accelerate joins none on a CPU unless the arguments say so; "
            "write use_cpu: true, by which they train together (DDP), or run on GPUs"
        )
    if engine is None or kind in _SHARDED:
        return None
    if kind == "NO":
        return (
            f"{engine} was asked for, one process runs without it; start it by accelerate launch or torchrun, on GPUs"
        )
    if kind == "MULTI_CPU":
        return (
            f"{engine} was asked for, DDP runs: accelerate leaves it out on a CPU, and every process holds the whole model and "
            "its optimizer; run on GPUs"
        )
    return (
        f"{engine} was asked for, DDP runs: an Accelerator() was made after the trainer's arguments and before the trainer, "
        "which takes over its settings; make none"
    )


def switched_on() -> str | None:
    return next((name for switch, name in _SWITCHES.items() if os.environ.get(switch, "").lower() == "true"), None)
