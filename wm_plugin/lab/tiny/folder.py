"""The folder of a model that a command writes."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import work_folder
from wm_plugin.errors import UserError


def check_out(out: Path, mark: str, what: str) -> None:
    """Refuse a file, or a folder that is not empty and lacks the file `mark`, which `writing` puts there.

    Args:
        what: the model, in words.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; name a folder")
    if out.exists() and not (out / mark).exists() and any(out.iterdir()):
        raise UserError(f"--out: {out} holds something else than {what}; name another folder")


@contextmanager
def writing(out: Path, mark: str, note: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder for the model's files, which move to `out` at the end, with `note` in the file `mark`.

    `config.json`, which completes a model, moves last.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with work_folder(out) as folder:
        yield folder
        (folder / mark).write_text(json.dumps(note) + "\n")
        out.mkdir(exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == "config.json"):
            os.replace(file, out / file.name)


def save(model: Any, tokenizer: Any, out: Path, mark: str, note: Mapping[str, Any]) -> None:
    """Write a model and its tokenizer to the folder `out`."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # writing takes a moment
    with writing(out, mark, note) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def load(folder: Path, flag: str) -> Any:
    """Load the model in a folder that a flag named, as float32."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"{flag}: {folder} is no folder of a model ({str(error)[:100]})") from None
