"""The folder of a model that a command writes: no other file is written over, and `config.json`, which completes it, is last."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import work_folder
from wm_plugin.errors import UserError


def check_out(out: Path, mark: str, what: str) -> None:
    """Refuse a folder with something else in it, whose files might be written over.

    Args:
        mark: the file that `writing` puts into a folder.
        what: the model, in words.

    Raises:
        UserError: it is a file, or a folder without the mark that is not empty.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file; name a folder")
    if out.exists() and not (out / mark).exists() and any(out.iterdir()):
        raise UserError(f"--out: {out} holds something else than {what}; name another folder")


@contextmanager
def writing(out: Path, mark: str, note: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to write the model's files to, which become those of `out` at the end, with `note` under the name `mark`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with work_folder(out) as folder:
        yield folder
        (folder / mark).write_text(json.dumps(note) + "\n")
        out.mkdir(exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name == "config.json"):
            os.replace(file, out / file.name)
