"""Loads tokenizers, with one error for the user, and finds the tokens that end a turn."""

from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError

_PROBE = "wmAnswer7Zk3Vx9Lp2"  # letters and digits, which no template changes


def load_tokenizer(name: str | Path, *, field: str = "") -> Any:
    """Load the transformers tokenizer in a folder, or of a name on the Hub.

    Args:
        name: a folder that `save_pretrained` wrote (`~` is expanded), or a name on the Hub.
        field: the setting that named it, for messages.

    Raises:
        UserError: it cannot be loaded.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError("a tokenizer", str(error.name), "trl") from None
    where = f"{field} {name}" if field else str(name)
    if is_missing_folder(name):
        raise UserError(f"{where}: no tokenizer, there is no such folder; name one that save_pretrained wrote")
    try:
        return AutoTokenizer.from_pretrained(str(Path(name).expanduser()))
    except Exception as error:  # transformers raises many kinds for a bad file or without a network
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{where}: no tokenizer ({type(error).__name__}: {reason}); name a folder that save_pretrained wrote, or a model on "
            "the Hub"
        ) from error


def is_missing_folder(name: str | Path) -> bool:
    """Whether a name can only be a folder's (Hub names have at most one slash) and there is no such folder."""
    text = str(name)
    is_folder = text.startswith((".", "/", "~")) or (text.count("/") > 1 and "://" not in text)
    return is_folder and not Path(name).expanduser().is_dir()


def turn_ends(name: str | Path, *, local_files_only: bool = False) -> list[int]:
    """Return the tokens that end a turn, from the generation config beside a tokenizer; none without that file."""
    from transformers import GenerationConfig

    try:
        path = str(Path(name).expanduser())
        ids = GenerationConfig.from_pretrained(path, local_files_only=local_files_only).eos_token_id
    except (OSError, ValueError):  # most folders with only a tokenizer have no generation config
        return []
    return list(ids) if isinstance(ids, list) else [] if ids is None else [ids]


def model_type(name: str | Path) -> str | None:
    """Return the model type beside a tokenizer; None without a model's config."""
    from transformers import AutoConfig

    try:
        kind: str = AutoConfig.from_pretrained(str(Path(name).expanduser())).model_type
    except (OSError, ValueError):
        return None
    return kind


def template_end(tokenizer: Any) -> int | None:
    """Return the special token that the chat template writes after an assistant turn's content; None without one."""
    from wm_plugin.tokens.chat import Chat  # brings torch

    try:
        text = Chat(tokenizer).render([{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}])
    except UserError:  # a template may require other conversations, such as a system message first
        return None
    ids = tokenizer(text.rpartition(_PROBE)[2].lstrip(), add_special_tokens=False).input_ids
    return ids[0] if ids and ids[0] in tokenizer.all_special_ids else None
