"""What verl's dumps of rollouts lack: the prompt's messages, as a column, and the tools that it shows, in a file beside them.

verl writes decoded texts without special tokens. In these a prompt cannot be taken apart, and made again, exactly.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from wm_plugin.data.host_dumps import COLUMN, FILE, PROMPT, Schemas, beside, save

FOLDERS = ("rollout_data_dir", "validation_data_dir")
Shown = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # a prompt's messages, and the schemas of the tools in it


def folders(config: Any) -> list[str]:
    """Return the folders that verl writes rollouts to."""
    chosen = (OmegaConf.select(config, f"trainer.{name}") for name in FOLDERS)
    return [folder for folder in chosen if folder]


def shown(messages: Iterable[Mapping[str, Any]], schemas: Sequence[Any] | None) -> Shown | None:
    """Return a rollout's prompt for its dump; None for contents that are no text."""
    plain = [dict(message) for message in messages]
    return (plain, list(schemas or ())) if all(isinstance(one.get("content"), str) for one in plain) else None


class Prompts:
    """The prompts of rollouts by their key, from the agent loop to the dump."""

    def __init__(self) -> None:
        self._kept: dict[str, Shown] = {}
        self._schemas: dict[str, dict[str, Schemas]] = {}  # of each folder

    def keep(self, key: str, prompt: Any) -> None:
        if prompt is not None:
            self._kept[key] = prompt

    def columns(self, keys: Sequence[str], folder: str) -> dict[str, list[Any]]:
        """Return the columns of a dump, empty if one of its prompts is not known. Save the tools, and forget the prompts."""
        prompts = [self._kept.get(key) for key in keys]
        self._kept.clear()
        known = [prompt for prompt in prompts if prompt is not None]
        if not known or len(known) < len(prompts):
            return {}
        names = [_digest(schemas) for _, schemas in known]
        self._save(folder, {name: schemas for name, (_, schemas) in zip(names, known, strict=True)})
        return {PROMPT: [messages for messages, _ in known], COLUMN: names}

    def _save(self, folder: str, schemas: Mapping[str, Schemas]) -> None:
        before = self._schemas.setdefault(folder, dict(beside(Path(folder) / FILE).tools))
        if not schemas.keys() <= before.keys():  # also those of an interrupted run
            before |= schemas
            save(folder, before)


def _digest(schemas: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:12]
