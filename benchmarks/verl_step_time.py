"""What the world-model term costs on verl: the real worker's update, with the term and without, paired in one run.

Beside it the bytes that our columns add to a batch, and the time that it takes to make them. Writes
benchmarks/results/verl_step_time_<shape>.json.

    python benchmarks/verl_step_time.py                 # CPU, 3M parameters
    python benchmarks/verl_step_time.py --model runs/smollm2_135m --repeats 12   # CPU, SmolLM2-135M
    python benchmarks/verl_step_time.py --device cuda   # 0.5B parameters (the shape of Qwen2.5-0.5B), bf16, 4k tokens
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stamps import stamp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
if "cuda" not in sys.argv and "--device=cuda" not in sys.argv:
    os.environ["VERL_PLATFORM"] = "cpu"  # read when verl is imported

import torch
import transformers
import verl
from verl.workers.engine_workers import TrainingWorker

from support import on_verl
from support.on_verl import Rollout
from wm_plugin import EchoConfig
from wm_plugin.objectives import Span
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.names import COLUMNS
from wm_plugin.verl.trainer import make_columns
from wm_plugin.verl.worker import WorldModelTrainingWorker

RESULTS = Path(__file__).parent / "results"
ECHO = EchoConfig(0.5)
ARMS = ("stock", "ours")
BLOCK = 32  # tokens of a turn, and of a tool's result
SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {
        "rows": 8,
        "micro": 4,
        "prompt": 64,
        "response": 448,
        "mixed": "fp32",
        "model": {
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 8192,
        },
    },
    "pretrained": {  # about the SQL tasks: 200 tokens of prompt, 320 of turns and results
        "rows": 4,
        "micro": 2,
        "prompt": 200,
        "response": 320,
        "mixed": "fp32",
        "model": {"vocab_size": 49152},
    },
    "cuda": {
        "rows": 8,
        "micro": 4,
        "prompt": 512,
        "response": 3584,
        "mixed": "bf16",
        "model": {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "max_position_embeddings": 8192,
        },
    },
}


def make_rollouts(kind: str) -> list[Rollout]:
    """Half of a response comes from tools, in blocks."""
    shape = SHAPES[kind]
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(shape["model"]["vocab_size"], (count,), generator=generator).tolist()

    length = shape["response"]
    mask = [int(token // BLOCK % 2 == 0) for token in range(length)]
    starts = range(BLOCK, length, 2 * BLOCK)
    spans = [Span(start, min(start + BLOCK, length), "tool", "run_code", True) for start in starts]
    return [
        Rollout(tokens(shape["prompt"]), tokens(length), mask, spans, row / shape["rows"] - 0.5)
        for row in range(shape["rows"])
    ]


class Arm:
    def __init__(self, name: str, kind: str, folder: Path) -> None:
        self.cuda = kind == "cuda"
        shape, ours = SHAPES[kind], name == "ours"
        mixed = {"param": shape["mixed"], "reduce": "fp32", "buffer": "fp32"}
        self.worker = on_verl.make_worker(
            folder,
            WorldModelTrainingWorker if ours else TrainingWorker,
            precision="fp32",
            mixed=mixed,
            override_config={"attn_implementation": "sdpa"},
        )
        loss = on_verl.policy_loss()
        self.worker.set_loss_fn(on_verl.with_term(loss, ECHO) if ours else loss)
        self.batch = on_verl.make_batch(
            make_rollouts(kind),
            ECHO if ours else None,
            tools=["run_code"],
            dtype=torch.float32,
            micro_batch_size_per_gpu=shape["micro"],
        )

    def step(self) -> float:
        """Seconds of one update: CPU seconds on a CPU, wall seconds on a GPU."""
        batch = self.batch.clone()
        if self.cuda:
            torch.cuda.synchronize()
        clock = time.perf_counter if self.cuda else time.process_time
        start = clock()
        self.worker.train_mini_batch(batch)
        if self.cuda:
            torch.cuda.synchronize()
        return clock() - start


def peak_memory(name: str, kind: str, folder: Path) -> float:
    """MiB at the peak of three updates. On a CPU the process's resident set, so each arm has a process of its own."""
    arm = Arm(name, kind, folder)
    if arm.cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        arm.step()
    if arm.cuda:
        return torch.cuda.max_memory_allocated() / 2**20
    # not getrusage: its peak is inherited from the process that started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def column_bytes(arm: Arm) -> dict[str, float]:
    """Bytes a response token of our columns, and of all of verl's that an update reads."""
    values = {name: tensor for name, tensor in arm.batch.items() if isinstance(tensor, torch.Tensor) and name != "row"}
    sizes = {name: (t.values() if t.is_nested else t).nbytes for name, t in values.items()}
    tokens = values["responses"].values().numel()
    ours = sum(size for name, size in sizes.items() if name in COLUMNS)
    return {"ours": ours / tokens, "stock": (sum(sizes.values()) - ours) / tokens}


def seconds_of_columns(kind: str) -> float:
    """CPU seconds to weigh the spans of a batch and to make its columns, which the driver does."""
    rollouts = make_rollouts(kind)
    rows = [on_verl.row_of(rollout) for rollout in rollouts]
    origins = [[Origin(span) for span in rollout.spans] for rollout in rollouts]
    seconds = []
    for _ in range(50):
        start = time.process_time()
        make_columns(on_verl.running(ECHO, ["run_code"]), [weigh(row, ECHO) for row in origins], rows)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--model", type=Path, help="folder that python -m wm_plugin.lab.tiny pretrained wrote; on a CPU"
    )
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = "pretrained" if options.model else options.device
    with tempfile.TemporaryDirectory() as name:
        folder = options.model or Path(name)
        if not options.model:
            on_verl.save_model(folder, torch.float32, **SHAPES[kind]["model"])
        if options.memory_of:
            print(peak_memory(options.memory_of, kind, folder))
        else:
            measure(kind, options.repeats, folder)


def measure(kind: str, repeats: int, folder: Path) -> None:
    arms = {name: Arm(name, kind, folder) for name in ARMS}
    for arm in arms.values():
        arm.step()
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    for repeat in range(repeats):  # in turn, and in changing order, so that whatever else runs hits all alike
        for name in ARMS if repeat % 2 else reversed(ARMS):
            seconds[name].append(arms[name].step())
    memory = {}
    for name in ARMS:
        which = ["--model", str(folder)] if kind == "pretrained" else ["--device", kind]
        command = [sys.executable, __file__, *which, "--memory-of", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
        memory[name] = float(done.stdout.split()[-1])
    rows = []
    for name in ARMS:
        ratios = sorted(mine / stock for mine, stock in zip(seconds[name], seconds["stock"], strict=True))
        rows.append(
            {
                "arm": name,
                "seconds_median": statistics.median(seconds[name]),
                "ratio_median": statistics.median(ratios),
                "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
                "ratio_of_minima": min(seconds[name]) / min(seconds["stock"]),
                "peak_mib": memory[name],
                "memory_ratio": memory[name] / memory["stock"],
            }
        )
    shape = SHAPES[kind]
    result = {
        "question": "one update (train_mini_batch, FSDP2, one rank) of a mini-batch of two micro-batches, against stock verl, "
        "paired in one run",
        "device": torch.cuda.get_device_name() if kind == "cuda" else f"CPU ({platform.machine()})",
        "versions": {"torch": torch.__version__, "verl": verl.__version__, "transformers": transformers.__version__},
        "parameters": sum(p.numel() for p in arms["stock"].worker.engine.module.parameters()),
        "tokens": shape["rows"] * (shape["prompt"] + shape["response"]),
        "precision": shape["mixed"],
        "repeats": repeats,
        "arms": rows,
        "bytes_per_response_token": column_bytes(arms["ours"]),
        "seconds_of_columns": seconds_of_columns(kind),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"verl_step_time_{kind}.json").write_text(json.dumps(result, indent=2) + "\n")
    stamp(RESULTS / f"verl_step_time_{kind}.json", {"repeats": repeats, "shape": shape})
    print(f"{'arm':16s} {'median s':>9s} {'ratio':>7s} {'quartiles':>15s} {'of minima':>9s} {'MiB':>7s} {'ratio':>6s}")
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['arm']:16s} {row['seconds_median']:9.4f} {row['ratio_median']:7.3f} {low:7.3f}-{high:.3f}   "
            f"{row['ratio_of_minima']:9.3f} {row['peak_mib']:7.0f} {row['memory_ratio']:6.3f}"
        )
    sizes = result["bytes_per_response_token"]
    print(f"bytes a response token: {sizes['ours']:.2f} ours, {sizes['stock']:.2f} verl's")
    print(f"columns of the batch: {1e3 * result['seconds_of_columns']:.2f} ms")


if __name__ == "__main__":
    main()
