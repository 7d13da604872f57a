"""Whether accelerate runs the engine that was asked for. On a CPU it leaves FSDP out without a word."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
import yaml

from wm_plugin.hosting.checks import Check

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
    """What to warn of, and the way out; None where what runs is what was asked for.

    Args:
        args: the trainer's arguments.
        kind: accelerate's `distributed_type`.
    """
    engine = "FSDP" if args.fsdp else "DeepSpeed" if args.deepspeed else _switched_on()
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


def checks() -> list[Check]:
    """What `wm doctor` says of FSDP: nothing unless the launcher, or the file that it reads by default, asks for it."""
    if _switched_on() == "FSDP":
        where, on_cpu = "ACCELERATE_USE_FSDP is set", False
    else:
        path = default_config()
        settings = _read(path)
        if settings.get("distributed_type") != "FSDP":
            return []
        where, on_cpu = f"in {path}, by which accelerate launch starts", settings.get("use_cpu") is True
    if not on_cpu and _has_gpu():
        return [Check("sharding", "ok", f"FSDP was asked for ({where}), and there is a GPU")]
    return [
        Check(
            "sharding",
            "warn",
            f"FSDP was asked for ({where}), DDP runs: accelerate leaves FSDP out on a CPU",
            "run on GPUs; on a CPU write use_cpu: true for the trainer, without which each process trains alone",
        )
    ]


def default_config() -> Path:
    """The file of settings that `accelerate launch` takes where it is given none."""
    from accelerate.commands.config.config_args import default_config_file

    return Path(default_config_file)


def _switched_on() -> str | None:
    return next((name for switch, name in _SWITCHES.items() if os.environ.get(switch, "").lower() == "true"), None)


def _read(path: Path) -> dict[str, Any]:
    """A file of accelerate's settings; empty if it cannot be read, which accelerate says itself."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML, too
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _has_gpu() -> bool:
    """Whether there is a device for which accelerate makes process groups: it has none for Apple's."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type != "mps"
