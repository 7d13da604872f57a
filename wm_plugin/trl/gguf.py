"""A model in a GGUF file, as a dense one that trains and saves: transformers dequantises it."""

from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.trl import _compat

SUFFIX = ".gguf"


def is_gguf(name: str) -> bool:
    """Return whether a model's name is that of a GGUF file."""
    return name.endswith(SUFFIX)


def load(name: str, *, dtype: Any = None, attn_implementation: str | None = None) -> tuple[Any, Any]:
    """Return the model and the tokenizer of a GGUF file.

    Args:
        dtype: of the weights; None or "auto": float32, since a trainer's steps are lost in fewer bits.

    Raises:
        UserError: there is no such file, or transformers cannot read it.
        MissingExtraError: the package gguf is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"model_name_or_path is {name!r}: there is no such file")
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtraError("a model in a GGUF file", "gguf", "pretrained") from None
    dtype = "float32" if dtype in (None, "auto") else dtype
    settings = {"gguf_file": path.name, **_compat.dequantized()}
    if attn_implementation is not None:
        settings["attn_implementation"] = attn_implementation
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=dtype, **settings)
    except Exception as error:  # of many kinds: a damaged file, an architecture or a quantisation that is not known
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model_name_or_path is {name!r}: not read ({type(error).__name__}: {reason})") from error
    return model, tokenizer
