"""A model and a tokenizer of SmolLM2's form, with random weights and a token for each byte; and as a GGUF file."""

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from wm_plugin.lab.tiny import pretrained

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


def permuted(weights, heads):
    """Rows as llama.cpp rotates them; the conversion from transformers does this."""
    return weights.reshape(heads, 2, -1, weights.shape[-1]).transpose(1, 2).reshape(weights.shape)


def write_gguf(path, model):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    text = fields()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(text["tokenizer.ggml.tokens"])
    writer.add_token_types(text["tokenizer.ggml.token_type"])
    writer.add_token_merges(text["tokenizer.ggml.merges"])
    for name in ("bos", "eos", "unknown", "padding"):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", text[f"tokenizer.ggml.{name}_token_id"])
    writer.add_context_length(512)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(HEADS["num_attention_heads"])
    writer.add_head_count_kv(HEADS["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    parts = {name: part for part, name in pretrained._PARTS.items()}
    for name, weights in model.state_dict().items():
        weights = weights.detach()
        if name == "lm_head.weight":  # the embeddings
            continue
        if name.endswith("q_proj.weight"):
            weights = permuted(weights, HEADS["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            weights = permuted(weights, HEADS["num_key_value_heads"])
        own = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(name)
        if own is None:
            _, _, layer, rest = name.split(".", 3)
            own = f"blk.{layer}.{parts[rest.removesuffix('.weight')]}.weight"
        if own == "token_embd.weight":  # in blocks of 32, as the real one
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(own, gguf.quantize(weights.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(own, weights.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
