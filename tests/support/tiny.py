"""Tokenizers and models that are as small as they can be, for all tests."""

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

EOS, PAD, START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
CALL, RESPONSE = ("<tool_call>", "</tool_call>"), ("<tool_response>", "</tool_response>")


def byte_level(texts: Iterable[str] | None = None, size: int = 256, *, regex: bool = True) -> Tokenizer:
    """A byte-level BPE: one token a byte, or learnt from texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: index for index, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]) if texts is None else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer.decoder = decoders.ByteLevel()
    if texts is not None:
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def fast(backend: Tokenizer, template: str, *, plain: Iterable[str] = (*CALL, *RESPONSE)) -> PreTrainedTokenizerFast:
    """The backend with Qwen's special tokens and a chat template; `plain` are tokens that are not special."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=EOS, pad_token=PAD, additional_special_tokens=[START], padding_side="left"
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    tokenizer.chat_template = template
    return tokenizer


def qwen2(vocabulary: int, eos: int, pad: int, *, seed: int = 0, **fields: Any) -> Qwen2ForCausalLM:
    """A random model of two layers; `fields` are of its config."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }
    return Qwen2ForCausalLM(Qwen2Config(**{**config, **fields}))
