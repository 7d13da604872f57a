"""Supervised training of a world model with TRL's SFTTrainer: RWML's WM-SFT, and the model of its filter."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, PrinterCallback
from trl import SFTConfig, SFTTrainer

from wm_plugin.data.outputs import atomic_folder
from wm_plugin.data.predictions import same_settings
from wm_plugin.errors import UserError
from wm_plugin.tokens.tokenizer import load_tokenizer
from wm_plugin.trl import sharding


def train_world_model(
    model: str | Path,
    rows: Sequence[dict[str, Any]],
    out: str | Path,
    *,
    epochs: float = 2,
    learning_rate: float = 2e-6,
    batch_size: int = 32,
    micro_batch_size: int = 4,
    max_length: int | None = None,
    seed: int = 0,
) -> Path:
    """Train `model` on conversations and save it to `out`, which only appears when complete. The defaults are RWML's WM-SFT.

    If `out` exists and was trained with the same settings on the same rows, nothing happens. Weights and optimizer are float32,
    because updates of this size vanish in bfloat16; on a GPU the computation is in bfloat16. The model is saved in the base's
    precision.

    Args:
        model: the base: a folder or a name, with a chat template.
        rows: `prompt` and `completion`, each a list of messages. Only the completion's tokens count.
        out: the folder.
        epochs, learning_rate, seed: as in TRL.
        batch_size: rows per optimizer step.
        micro_batch_size: maximum number of rows per forward pass; the largest one that divides `batch_size` is used.
        max_length: longer rows are cut to this many tokens; None cuts none.

    Returns:
        `out`.

    Raises:
        UserError: the base cannot be loaded, there are no rows, or `out` was trained with other settings.
    """
    out = Path(out)
    if not rows:
        raise UserError("no rows to train on")
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    settings = {
        "model": str(model),
        "rows": digest.hexdigest(),
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "max_length": max_length,
        "seed": seed,
    }
    if out.exists():
        if not (out / "training.json").exists():
            raise UserError(f"{out}: there is something else of this name; name another folder")
        same_settings(out / "training.json", settings, "a model")
        return out

    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as unfinished:
        trainer = _trainer(
            str(model),
            Dataset.from_list(list(rows)),
            output_dir=str(unfinished),
            num_train_epochs=epochs,
            learning_rate=learning_rate,
            max_length=max_length,
            seed=seed,
            **_batches(batch_size, micro_batch_size),
        )
        trainer.train()
        dtype = AutoConfig.from_pretrained(str(model)).dtype
        if dtype is not None:
            trainer.model.to(dtype)
        trainer.save_model(str(unfinished))
        same_settings(unfinished / "training.json", settings, "a model")
    return out


def _trainer(model: str, dataset: Dataset, **options: Any) -> SFTTrainer:
    gpu = torch.cuda.is_available()
    config = SFTConfig(
        model_init_kwargs={"dtype": "float32"},
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=gpu,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=not sys.stderr.isatty(),
        **options,
    )
    tokenizer = load_tokenizer(model)
    try:
        trainer = SFTTrainer(model, args=config, train_dataset=dataset, processing_class=tokenizer)
    except OSError as error:
        raise UserError(f"{model}: {' '.join(str(error).split())[:200]}") from None
    sharding.warn(trainer)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _batches(batch_size: int, micro_batch_size: int) -> dict[str, int]:
    """Settings for exactly `batch_size` rows per optimizer step."""
    if batch_size < 1 or micro_batch_size < 1:
        raise UserError(f"batch_size is {batch_size}, micro_batch_size {micro_batch_size}; write numbers >= 1")
    micro = next(size for size in range(min(micro_batch_size, batch_size), 0, -1) if batch_size % size == 0)
    return {"per_device_train_batch_size": micro, "gradient_accumulation_steps": batch_size // micro}
