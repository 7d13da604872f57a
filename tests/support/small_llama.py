"""A model and a tokenizer of SmolLM2's form, with random weights and a token for each byte."""

import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["1 2", "a b", "Ġ ab"]

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def fields():
    """What SmolLM2's file says of its tokenizer, with 256 bytes and three merges."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "llama.context_length": 512,
    }


def make_model(vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        **SIZES,
        **HEADS,
    )
    return LlamaForCausalLM(config).eval()
