"""How fast `wm lab weights` compares two models, beside reading their files, and how much memory it takes.

    python benchmarks/evaluation_weights.py --gigabytes 1

Two models of bfloat16 weights, of which a hundredth changed, are written in shards and compared in a process of its own. The disk
is read by plain reads of 16 MB before and after; the faster of the two counts. Files that the system still holds are read from
memory: `--cold` drops them first, where that is allowed. The result is committed as results/evaluation_weights.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stamps import stamp

TENSOR = 1 << 25  # numbers of a tensor
SHARD = 4  # tensors of a file
READ = 1 << 24
HERE = Path(__file__).parent


def write(folder: Path, tensors: int, seed: int) -> None:
    """A model of random bfloat16 weights in shards. Seed 1 differs from seed 0 in a hundredth of them."""
    import torch

    folder.mkdir()
    index: dict[str, str] = {}
    for first in range(0, tensors, SHARD):
        names = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(first, min(first + SHARD, tensors))]
        size = 2 * TENSOR
        entries = {
            name: {"dtype": "BF16", "shape": [TENSOR], "data_offsets": [place * size, (place + 1) * size]}
            for place, name in enumerate(names)
        }
        text = json.dumps(entries).encode()
        file = f"model-{first:05}.safetensors"
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for number in range(first, first + len(names)):
                weights = torch.randn(TENSOR, generator=torch.Generator().manual_seed(number)).bfloat16()
                if seed:
                    weights[::100] *= 1.1
                out.write(weights.view(torch.uint8).numpy().tobytes())
            out.flush()
            os.fsync(out.fileno())
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def drop(files: list[Path]) -> None:
    """Let the system forget what it holds of the files."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: list[Path]) -> float:
    """Seconds of reading all files."""
    start = time.perf_counter()
    buffer = bytearray(READ)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def memory() -> float:
    """The most memory that this process had so far, in MB; `getrusage` would give its parent's before it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(before: Path, after: Path) -> dict[str, float]:
    """Seconds, processor seconds, the share of changed weights and the peak of memory of a comparison, of this process."""
    from wm_plugin.lab.evaluation.weights import changes, evaluation, pair

    imports, start, used = memory(), time.perf_counter(), time.process_time()
    pairs = pair(before, after)
    result = evaluation(changes(pairs), pairs, "before", "after")
    seconds, used = time.perf_counter() - start, time.process_time() - used
    changed = result.measure("changed").value or 0.0
    return {"seconds": seconds, "cpu_seconds": used, "changed": changed, "peak_mb": memory(), "imports_mb": imports}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of each model")
    parser.add_argument("--cold", action="store_true", help="drop the files from memory before each reading")
    parser.add_argument("--folder", type=Path, help="where the models are written (default: a temporary folder)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "evaluation_weights.json")
    parser.add_argument("--measure", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    tensors = max(1, round(options.gigabytes * 1e9 / (2 * TENSOR)))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folders = [Path(name) / part for part in ("before", "after")]
        for seed, folder in enumerate(folders):
            write(folder, tensors, seed)
        files = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
        size = sum(path.stat().st_size for path in files) / 1e6
        forget = drop if options.cold else (lambda _: None)
        forget(files)
        plain = read(files)
        forget(files)
        command = [sys.executable, __file__, "--measure", *map(str, folders)]
        made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        forget(files)
        plain = min(plain, read(files))
    result = {
        "gigabytes_a_model": size / 2e3,
        "cold": options.cold,
        "processors": os.cpu_count(),
        "read_mb_s": size / plain,
        "compared_mb_s": size / made["seconds"],
        "compared_mb_a_cpu_second": size / made["cpu_seconds"],
        "share_of_reading": plain / made["seconds"],
        **{key: made[key] for key in ("changed", "peak_mb", "imports_mb")},
    }
    result = {key: round(value, 4) if isinstance(value, float) else value for key, value in result.items()}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    stamp(options.out, vars(options))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
