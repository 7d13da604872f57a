"""What the world-model term costs on verl: the real worker's update, with the term and without, paired in one run.

`paired.py` lists the objectives, and says when one is within noise of the plain one. Beside them the bytes that our columns add
to a batch, and the time that the driver takes to make them. Writes benchmarks/results/verl_step_time_<shape>.json and .md.

    python benchmarks/verl_step_time.py                 # CPU, 3M parameters
    python benchmarks/verl_step_time.py --model runs/smollm2_135m --repeats 12   # CPU, SmolLM2-135M
    python benchmarks/verl_step_time.py --device cuda   # 0.5B parameters (the shape of Qwen2.5-0.5B), bf16, 4k tokens
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paired
from paired import OBJECTIVES
from stamps import stamp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
if "cuda" not in sys.argv and "--device=cuda" not in sys.argv:
    os.environ["VERL_PLATFORM"] = "cpu"  # read when verl is imported

import torch
import transformers
import verl
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

from support import on_verl
from support.on_verl import Rollout
from wm_plugin.objectives import Span
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.run import Objectives, RunObjective, Weighed, column
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.loss import world_model_loss
from wm_plugin.verl.names import COUNTS, NUM_TOKENS, SILENT, TOOL_IDS, WEIGHTS
from wm_plugin.verl.trainer import make_columns
from wm_plugin.verl.worker import WorldModelTrainingWorker

RESULTS = Path(__file__).parent / "results"
ARMS = ("stock", *OBJECTIVES)
BLOCK = 32  # tokens of a turn, and of what the environment answers
SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {
        "rows": 4,
        "micro": 2,
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
    """Half of a response comes from the environment, in blocks: a tool's results and a user's answers in turn."""
    shape = SHAPES[kind]
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(shape["model"]["vocab_size"], (count,), generator=generator).tolist()

    length = shape["response"]
    mask = [int(token // BLOCK % 2 == 0) for token in range(length)]
    starts = range(BLOCK, length, 2 * BLOCK)
    sources = [("tool", "run_code"), ("user", None)]
    spans = [Span(start, min(start + BLOCK, length), *sources[place % 2], True) for place, start in enumerate(starts)]
    return [
        Rollout(tokens(shape["prompt"]), tokens(length), mask, spans, row / shape["rows"] - 0.5)
        for row in range(shape["rows"])
    ]


class Arm:
    def __init__(self, name: str, kind: str, folder: Path) -> None:
        self.cuda = kind == "cuda"
        shape, ours = SHAPES[kind], name in OBJECTIVES
        mixed = {"param": shape["mixed"], "reduce": "fp32", "buffer": "fp32"}
        self.worker = on_verl.make_worker(
            folder,
            WorldModelTrainingWorker if ours else TrainingWorker,
            precision="fp32",
            mixed=mixed,
            override_config={"attn_implementation": "sdpa"},
        )
        self.objectives = Objectives.read(OBJECTIVES[name]) if ours else Objectives()
        loss = on_verl.policy_loss()
        self.worker.set_loss_fn(on_verl.with_term(loss, self.objectives) if ours else loss)
        self.rollouts = make_rollouts(kind)
        self.rows = [on_verl.row_of(rollout) for rollout in self.rollouts]
        self.origins = [[Origin(span) for span in rollout.spans] for rollout in self.rollouts]
        self.running = [on_verl.running(one, ["run_code"], name=own) for own, one in self.objectives.items()]
        self.batch = on_verl.make_batch(
            self.rollouts,
            self.objectives,
            tools=["run_code"],
            dtype=torch.float32,
            micro_batch_size_per_gpu=shape["micro"],
        )
        self.batch.update(self.columns())  # with what `select_rollout` says, which the fixture does not ask

    def weighed(self, one: RunObjective) -> list[Weighed | None]:
        scored = [([], float(row % 2)) for row in range(len(self.rows))]
        return one.weigh(self.origins, [False] * len(self.rows), Tally(), rollouts=scored)

    def columns(self) -> dict[str, torch.Tensor]:
        """What the driver adds to a batch, from the spans."""
        columns: dict[str, torch.Tensor] = {}
        for one in self.running:
            columns |= make_columns(one, self.weighed(one), self.rows)
        return columns

    def step(self) -> float:
        """Seconds of one update: CPU seconds on a CPU, wall seconds on a GPU."""
        batch = self.batch.clone()
        return self._seconds(lambda: self.worker.train_mini_batch(batch))

    def term(self) -> float:
        """Seconds of the columns and of the term's loss and gradient in the log-probabilities, of the batch at once."""
        return self._seconds(self._term)

    def _term(self) -> None:
        columns = self.columns()
        data = self.batch.clone()
        data.update(columns)
        tokens = data["input_ids"].values().numel()
        logps = torch.rand(tokens, device=self.worker.device_name).neg().requires_grad_()
        output = {"log_probs": torch.nested.nested_tensor_from_jagged(logps, data["input_ids"].offsets())}
        counts = {column(NUM_TOKENS, name): 1000 for name in self.objectives}
        tu.assign_non_tensor(data, **counts, **{SILENT: 0.0, "dp_size": 1})
        base = lambda **_: (logps.sum() * 0, {})  # noqa: E731 - nothing of verl's
        loss, _ = world_model_loss(output, data, base=base, objectives=self.objectives)
        loss.backward()

    def _seconds(self, function: Callable[[], Any]) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        clock = time.perf_counter if self.cuda else time.process_time
        start = clock()
        function()
        if self.cuda:
            torch.cuda.synchronize()
        return clock() - start


def column_bytes(arm: Arm) -> dict[str, float]:
    """Bytes a response token of our columns, and of all of verl's that an update reads."""
    values = {name: tensor for name, tensor in arm.batch.items() if isinstance(tensor, torch.Tensor) and name != "row"}
    sizes = {name: (t.values() if t.is_nested else t).nbytes for name, t in values.items()}
    tokens = values["responses"].values().numel()
    own = {column(one, name) for one in (WEIGHTS, TOOL_IDS, COUNTS) for name in arm.objectives}
    ours = sum(size for name, size in sizes.items() if name in own)
    return {"ours": ours / tokens, "stock": (sum(sizes.values()) - ours) / tokens}


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
            arm = Arm(options.memory_of, kind, folder)
            for _ in range(3):
                arm.step()
            print(torch.cuda.max_memory_allocated() / 2**20 if arm.cuda else paired.resident())
        else:
            measure(kind, options.repeats, folder)


def measure(kind: str, repeats: int, folder: Path) -> None:
    arms = {name: Arm(name, kind, folder) for name in ARMS}
    for arm in arms.values():
        arm.step()
    *_, seconds = paired.take_turns({name: arm.step for name, arm in arms.items()}, repeats)
    ours = {name: arm for name, arm in arms.items() if name in OBJECTIVES}
    *_, _ = paired.take_turns({name: arm.term for name, arm in ours.items()}, 5)
    *_, term = paired.take_turns({name: arm.term for name, arm in ours.items()}, 100)
    memory = {}
    for name in [name for name in paired.MEMORY if name in arms]:  # each in a process of its own
        which = ["--model", str(folder)] if kind == "pretrained" else ["--device", kind]
        command = [sys.executable, __file__, *which, "--memory-of", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
        memory[name] = float(done.stdout.split()[-1])
    shape = SHAPES[kind]
    result = {
        "question": "one update (train_mini_batch, FSDP2, one rank) of a mini-batch of two micro-batches, against stock verl and "
        "against the plain term",
        "rule": paired.RULE,
        "device": torch.cuda.get_device_name() if kind == "cuda" else f"CPU ({platform.machine()}), one thread",
        "versions": {"torch": torch.__version__, "verl": verl.__version__, "transformers": transformers.__version__},
        "parameters": sum(p.numel() for p in arms["stock"].worker.engine.module.parameters()),
        "tokens": shape["rows"] * (shape["prompt"] + shape["response"]),
        "precision": shape["mixed"],
        "repeats": repeats,
        "arms": paired.rows(seconds, memory, term),
        "bytes_per_response_token": {"stock": column_bytes(arms["stock"])["stock"]}
        | {name: column_bytes(arm)["ours"] for name, arm in ours.items()},
    }
    paired.write(RESULTS / f"verl_step_time_{kind}.json", "What the term costs on verl", result)
    stamp(RESULTS / f"verl_step_time_{kind}.json", {"repeats": repeats, "shape": shape})
    print(f"bytes a response token: {result['bytes_per_response_token']}")


if __name__ == "__main__":
    main()
