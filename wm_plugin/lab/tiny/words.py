"""A tokenizer for a tiny world model of any text world: a byte-level BPE of the words in files, with a short chat template.

Frequent words are one token each; everything else is written with pieces of them, down to bytes, so that no text is lost.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import Qwen2Tokenizer

from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.policy import EOS, PAD, template
from wm_plugin.untrusted import encodable, loads

SIZE = 2048  # tokens
HEADER = "<|im_start|>"  # opens an assistant's turn
_BYTES = 256
_LONGEST = 32  # bytes in a token


def make_tokenizer(files: Iterable[str | Path], size: int = SIZE) -> Qwen2Tokenizer:
    """Make a tokenizer of at most `size` tokens from the texts of `files`; equal files give equal tokenizers.

    Args:
        files: texts, or .jsonl, in which every text in every value counts.
        size: at least one token for each byte and each special token.

    Raises:
        UserError: `size` is too small, a file cannot be read, or the files have no text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    special = [PAD, EOS, HEADER]
    if size < _BYTES + len(special):
        raise UserError(
            f"a tokenizer of {size} tokens has no room for all bytes; write {_BYTES + len(special)} or more"
        )
    found = False

    def texts() -> Iterator[str]:
        nonlocal found
        for text in _texts(files):
            found = found or bool(text.strip())
            yield text

    learner = Tokenizer(models.BPE())
    own = _make({token: index for index, token in enumerate(special)}, []).backend_tokenizer
    learner.normalizer, learner.pre_tokenizer = own.normalizer, own.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=special,
        max_token_length=_LONGEST,
        show_progress=False,
    )
    learner.train_from_iterator(texts(), trainer)
    if not found:
        raise UserError("--words: the files have no text; name others")
    learnt = loads(learner.to_str())["model"]
    return _make(learnt["vocab"], [tuple(pair) for pair in learnt["merges"]])


def _make(vocabulary: dict[str, int], merges: list[Any]) -> Qwen2Tokenizer:
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        unk_token=None,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[HEADER],
        padding_side="left",
    )
    tokenizer.chat_template = template("words")  # a world model's dialogue alternates: the other turns need no header
    return tokenizer


def _texts(files: Iterable[str | Path]) -> Iterator[str]:
    for path in map(Path, files):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    yield from _strings(path, number, line) if path.suffix == ".jsonl" else (line,)
        except OSError as error:
            raise UserError(f"--words {path}: cannot be read ({error.strerror})") from None


def _strings(path: Path, number: int, line: str) -> Iterator[str]:
    """Yield the texts in a line of JSON."""
    if not line.strip():
        return
    try:
        left = [loads(line)]
    except ValueError as error:
        raise UserError(f"--words {path}:{number}: not JSON ({error})") from None
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield encodable(value)
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
