"""Loads tokenizers, from a directory or by a name on the Hub, with one line where that fails."""

from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError


def load_tokenizer(name: str | Path, field: str = "tokenizer") -> Any:
    """The tokenizer in a directory, or of a model on the Hub.

    Args:
        field: the setting or flag that the errors name.

    Raises:
        MissingExtraError: transformers is not installed.
        UserError: it cannot be loaded.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise MissingExtraError("a tokenizer", str(error.name), "trl") from None
    path = Path(name).expanduser()
    if str(name).startswith((".", "/", "~")) and not path.is_dir():
        raise UserError(f"{field}: there is no directory {str(name)!r}; name one that save_pretrained wrote")
    try:
        return AutoTokenizer.from_pretrained(str(path))
    except Exception as error:  # transformers raises many kinds for a bad file or no network
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{field}: {str(name)!r} cannot be loaded ({type(error).__name__}: {reason}); name a directory that "
            "save_pretrained wrote, or a model on the Hub"
        ) from error
