"""What verl's dumps of rollouts lack: the messages, as columns, and the tools that prompts show, in a file beside them.

verl writes decoded texts without special tokens. In these a prompt cannot be taken apart, and made again, exactly, and the
answers of most templates cannot be told from what they answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from wm_plugin.data.host_dumps import COLUMN, COMPLETION, EVERY, PROMPT, Shown, Writer
from wm_plugin.tokens.chat import Chat

FOLDERS = ("rollout_data_dir", "validation_data_dir")
Messages = list[dict[str, Any]]
Kept = tuple[Messages, Messages, dict[str, Any]]  # the prompt's messages, those after it, and the fields of `Shown`


def folders(config: Any) -> list[str]:
    """Return the folders that verl writes rollouts to."""
    chosen = (OmegaConf.select(config, f"trainer.{name}") for name in FOLDERS)
    return [folder for folder in chosen if folder]


def shown(
    prompt: Iterable[Mapping[str, Any]],
    completion: Iterable[Mapping[str, Any]],
    schemas: Sequence[Any] | None,
    tokenizer: Any,
    kwargs: Mapping[str, Any],
    reminder: str | None,
) -> Kept | None:
    """Return what a rollout's dump lacks; None for contents that are no text. The last three are those of `Chat`."""
    before, after = ([dict(message) for message in messages] for messages in (prompt, completion))
    if not all(isinstance(one.get("content"), str) for one in (*before, *after)):
        return None
    tools, kwargs = list(schemas or ()), OmegaConf.to_container(OmegaConf.create(dict(kwargs or {})), resolve=True)
    fingerprint = Chat(tokenizer, None, kwargs, reminder).fingerprint(tools)
    return before, after, {"tools": tools, "chat_template_kwargs": kwargs, "fingerprint": fingerprint}


class Prompts:
    """The prompts of rollouts by their key, from the agent loop to the dump."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._writers: dict[str, Writer] = {}  # of each folder

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
        writer = self._writers.setdefault(folder, Writer(folder))
        names = writer.declare((EVERY, Shown.model_validate(fields)) for *_, fields in known)
        before, after, _ = zip(*known, strict=True)
        return {PROMPT: list(before), COMPLETION: list(after), COLUMN: names}
