"""Pack what a part of `gpu.py` needs into a folder below 60 MB, for a machine with a GPU that reaches nothing else.

    python benchmarks/gpu_pack.py speed --out gpu/speed
    python benchmarks/gpu_pack.py table --out gpu/table --model runs/smollm2_135m    # python -m wm_plugin.lab.tiny pretrained
    python benchmarks/gpu_pack.py rewards --out gpu/rewards

There `sh gpu/speed/run.sh RESULTS` runs the part. The machine has Python, and PyTorch and transformers with what they need; this
package, these scripts and all other requirements travel. The weights of the 135M model travel in 3 to 4 bits a number: every row
of a matrix is rounded to multiples of one share of its deviation, and the multiples are Huffman-coded. Of its 49,152 embeddings
only those of single characters travel, which is all that the tiny tokenizer writes: 106M parameters are left. Text that is cut
into characters is new to the model (4.5 nats a character, where a guess has 4.6; packed 4.1), so what it knows of language is of
little use in that table, which is about a model of this size rather than about what it has read.
"""

import argparse
import json
import math
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PARTS = ("speed", "table", "rewards")
LIMIT = 57_000_000  # bytes of a packed folder; a checkout of 8 MB may travel with it
CODE = ("wm_plugin", "recipes", "tests/support", "benchmarks")
# what a machine with PyTorch and transformers of any release has
# fmt: off
HAS = frozenset((
    "accelerate", "anyio", "certifi", "charset-normalizer", "click", "filelock", "fsspec", "h11", "hf-xet",
    "huggingface-hub", "idna", "jinja2", "markdown-it-py", "markupsafe", "mdurl", "mpmath", "networkx", "numpy", "packaging",
    "pandas", "psutil", "pyarrow", "pygments", "python-dateutil", "pyyaml", "regex", "requests", "rich", "safetensors",
    "setuptools", "shellingham", "six", "sympy", "tokenizers", "torch", "tqdm", "transformers", "typer", "typing-extensions",
    "tzdata", "urllib3",
))
# fmt: on
NEEDS = ("trl", "datasets", "pydantic", "cyclopts", "orjson", "ijson", "genson", "rapidfuzz", "PyYAML", "jinja2")
RUN = """#!/bin/sh
# run.sh RESULTS [FLAG...]: the part {part} of gpu.py. It writes RESULTS/{part}.json as it goes.
here=$(cd "$(dirname "$0")" && pwd)
set -e
work=$(mktemp -d)
tar -xzf "$here/code.tar.gz" -C "$work"
if [ -d "$here/wheels" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-warn-conflicts --target "$work/site" "$here"/wheels/*.whl
fi
out=$1
shift
export HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 PYTHONPATH="$work:$work/tests:$work/site"
exec python3 "$work/benchmarks/gpu.py" {part} --packed "$here" --out "$out" "$@"
"""


def pack(part: str, out: Path, *, model: Path | None = None, wheels: str | None = "3.12") -> dict[str, Any]:
    """Write the folder, and return its manifest.

    Args:
        part: of `gpu.py`. model: of the 135M model, for `table`.
        wheels: the machine's version of Python; None: it has all requirements.

    Raises:
        SystemExit: the folder is there already, or would be too large.
    """
    if out.exists():
        raise SystemExit(f"{out} is there already; name another folder with --out, or remove it")
    if (part == "table") != (model is not None):
        raise SystemExit(
            "the part table, and it alone, needs --model FOLDER, which python -m wm_plugin.lab.tiny pretrained writes"
        )
    listed = subprocess.run(["git", "ls-files", *CODE], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    out.mkdir(parents=True)
    with tarfile.open(out / "code.tar.gz", "w:gz") as code:
        for name in listed.splitlines():
            if not name.startswith("benchmarks/results/") and (ROOT / name).is_file():
                code.add(
                    ROOT / name, f"wm_plugin/{name}" if name.startswith("recipes/") else name
                )  # as the wheel has them
    (out / "run.sh").write_text(RUN.format(part=part))
    if wheels is not None:
        fetch(out / "wheels", wheels)
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    manifest: dict[str, Any] = {"part": part, "commit": git.stdout.strip() or "not recorded"}
    if model is not None:
        manifest["weights"] = pack_weights(model, out / "weights.bin", LIMIT - size(out) - 100_000)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    manifest["bytes"] = size(out)
    if manifest["bytes"] > LIMIT:
        raise SystemExit(f"{out} has {manifest['bytes']:,} bytes, more than {LIMIT:,}")
    return manifest


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fetch(folder: Path, python: str) -> None:
    """Fetch wheels of this environment's versions of all requirements that the machine lacks."""
    pins = [f"{name}=={metadata.version(name)}" for name in sorted(closure(NEEDS) - HAS)]
    # pip matches these names exactly
    platforms = [
        flag for minor in (35, 34, 31, 28, 27, 24, 17) for flag in ("--platform", f"manylinux_2_{minor}_x86_64")
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        python,
    ]
    platforms += ["--platform", "manylinux2014_x86_64", "--implementation", "cp", "--dest", str(folder)]
    subprocess.run([*command, *platforms, *pins], check=True)


def closure(names: tuple[str, ...]) -> set[str]:
    """The installed distributions among these, and all that they require without extras."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        try:
            needs = metadata.requires(name) or [] if name not in found else []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in needs:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                left.append(need.name)
    return found


# -- the weights ---------------------------------------------------------------------------------------------------------------


def pack_weights(folder: Path, out: Path, most: int) -> dict[str, Any]:
    """Write the model's weights in at most `most` bytes, with the embeddings of the tiny tokenizer's characters alone."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    own = characters(AutoTokenizer.from_pretrained(folder))
    embeddings = state.pop("model.embed_tokens.weight")
    state.pop("lm_head.weight", None)  # tied
    state["model.embed_tokens.weight"] = embeddings[own]
    config.vocab_size, config.tie_word_embeddings = len(own), True
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, None)
    low, high = 0.05, 4.0
    for _ in range(12):  # the finest step that fits; in a geometric middle
        middle = math.sqrt(low * high)
        low, high = (low, middle) if sum(map(len, coded(state, middle).values())) <= most else (middle, high)
    parts = coded(state, high)
    out.write_bytes(b"".join(parts.values()))
    numbers = sum(value.numel() for value in state.values())
    restored = decoded(parts, {name: list(value.shape) for name, value in state.items()})
    noise = sum(float((restored[name] - value).square().sum()) for name, value in state.items() if value.ndim == 2)
    signal = sum(float(value.square().sum()) for value in state.values() if value.ndim == 2)
    return {
        "config": config.to_dict(),
        "step": high,
        "tensors": {name: {"shape": list(value.shape), "bytes": len(parts[name])} for name, value in state.items()},
        "parameters": numbers,
        "bits_a_parameter": 8 * out.stat().st_size / numbers,
        "signal_to_noise_db": 10 * math.log10(signal / max(noise, 1e-30)),
    }


def load_weights(packed: Path) -> Any:
    """Make the model that `pack_weights` wrote; a turn of it is one token, whichever it is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = json.loads((packed / "manifest.json").read_text())["weights"]
    content, start, parts = (packed / "weights.bin").read_bytes(), 0, {}
    for name, tensor in fields["tensors"].items():
        parts[name] = content[start : start + tensor["bytes"]]
        start += tensor["bytes"]
    shapes = {name: tensor["shape"] for name, tensor in fields["tensors"].items()}
    config = LlamaConfig(**{**fields["config"], "dtype": "float32"})
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(decoded(parts, shapes), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{packed} has other weights than the model: {[*missing, *unexpected][:4]}")
    model.tie_weights()
    model.generation_config.eos_token_id = list(range(config.vocab_size))
    return model


def characters(tokenizer: Any) -> list[int]:
    """The model's token of each of the tiny tokenizer's: of the same character, and its end of a turn for the others."""
    from wm_plugin.lab.tiny.policy import make_tokenizer

    tiny, own = make_tokenizer(), tokenizer.get_vocab()
    ids = [own.get(token, own["<|im_end|>"]) for token in tiny.convert_ids_to_tokens(list(range(len(tiny))))]
    return ids + [own["<|im_end|>"]] * (-len(ids) % 8)


def coded(state: Mapping[str, torch.Tensor], step: float) -> dict[str, bytes]:
    """Each tensor's bytes: vectors as float32; of a matrix each row's deviation, and its numbers in Huffman's code."""
    parts = {}
    for name, value in state.items():
        if value.ndim != 2:
            parts[name] = value.float().numpy().tobytes()
            continue
        scale = (step * value.float().std(dim=1)).clamp(min=1e-12).half().float()
        levels = (value.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        press = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        parts[name] = scale.half().numpy().tobytes() + press.compress(levels.numpy().tobytes()) + press.flush()
    return parts


def decoded(parts: Mapping[str, bytes], shapes: Mapping[str, list[int]]) -> dict[str, torch.Tensor]:
    """What `coded` wrote, in float32."""
    state = {}
    for name, content in parts.items():
        rows, *columns = shapes[name]
        if not columns:
            state[name] = torch.frombuffer(bytearray(content), dtype=torch.float32)
            continue
        scale = torch.frombuffer(bytearray(content[: 2 * rows]), dtype=torch.float16).float()
        levels = torch.frombuffer(bytearray(zlib.decompress(content[2 * rows :], -15)), dtype=torch.int8)
        state[name] = levels.view(rows, *columns).float() * scale[:, None]
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument(
        "--model", type=Path, help="for table: folder that python -m wm_plugin.lab.tiny pretrained wrote"
    )
    parser.add_argument("--python", default="3.12", help="the machine's version of Python (default: 3.12)")
    parser.add_argument("--no-wheels", action="store_true", help="the machine has all requirements")
    options = parser.parse_args()
    wheels = None if options.no_wheels else options.python
    manifest = pack(options.part, options.out, model=options.model, wheels=wheels)
    if "weights" in manifest:
        weights = manifest["weights"]
        print(
            f"{weights['bits_a_parameter']:.2f} bits a parameter, signal to noise {weights['signal_to_noise_db']:.1f} dB"
        )
    print(f"{options.out}: {manifest['bytes'] / 1e6:.1f} MB of {LIMIT / 1e6:.0f}")


if __name__ == "__main__":
    main()
