"""What the world-model term costs: forward + backward of the real trainers, with it and without, paired in one run.

Beside it the naive way, a second forward for the term. Writes benchmarks/results/step_time_<device>.json.

    python benchmarks/step_time.py                 # CPU, 5M parameters
    python benchmarks/step_time.py --device cuda   # 0.5B parameters (the shape of Qwen2.5-0.5B), bf16, 4k tokens
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
import trl
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer

from stamps import stamp
from support import on_trl
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer

RESULTS = Path(__file__).parent / "results"
COEFF = 0.5
ARMS = ("stock", "ours", "second forward")
SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {
        "batch": 4,
        "prompt": 64,
        "completion": 448,
        "dtype": "float32",
        "config": {
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 8192,
        },
    },
    "cuda": {
        "batch": 4,
        "prompt": 512,
        "completion": 3584,
        "dtype": "bfloat16",
        "config": {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
    },
}


def make_trainer(cls: type[GRPOTrainer], device: str, **kwargs: Any) -> GRPOTrainer:
    shape = SHAPES[device]
    torch.manual_seed(0)
    tokenizer = on_trl.make_tokenizer()
    config = Qwen2Config(
        **shape["config"], max_position_embeddings=8192, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id
    )
    model = Qwen2ForCausalLM(config).to(getattr(torch, shape["dtype"]))
    args = on_trl.config(
        use_cpu=device == "cpu",
        bf16=shape["dtype"] == "bfloat16",
        per_device_train_batch_size=shape["batch"],
        gradient_accumulation_steps=1,
        loss_type="dapo",
    )
    return cls(
        model=model,
        reward_funcs=[on_trl.reward],
        args=args,
        train_dataset=on_trl.dataset(8),
        processing_class=tokenizer,
        environment_factory=on_trl.ToolEnvironment,
        **kwargs,
    )


def make_inputs(device: str) -> dict[str, torch.Tensor]:
    """A micro-batch as the host hands it to its loss; half of the completion comes from tools, in blocks of 32 tokens."""
    shape = SHAPES[device]
    batch, prompt, completion = shape["batch"], shape["prompt"], shape["completion"]
    generator = torch.Generator().manual_seed(1)
    vocabulary = shape["config"]["vocab_size"]
    tool_mask = (torch.arange(completion) // 32 % 2 == 0).long().expand(batch, -1).contiguous()
    inputs = {
        "prompt_ids": torch.randint(vocabulary, (batch, prompt), generator=generator),
        "prompt_mask": torch.ones(batch, prompt, dtype=torch.long),
        "completion_ids": torch.randint(vocabulary, (batch, completion), generator=generator),
        "completion_mask": torch.ones(batch, completion, dtype=torch.long),
        "tool_mask": tool_mask,
        "advantages": torch.linspace(-1, 1, batch),
        "num_items_in_batch": tool_mask.sum(),
        "wm_weights": (1 - tool_mask).float(),
        "wm_tool_ids": (1 - tool_mask).to(torch.int16),
        "wm_masked": torch.zeros(batch),
        "wm_num_tokens": (1 - tool_mask).sum(),
    }
    return {key: value.to(device) for key, value in inputs.items()}


def second_forward(trainer: GRPOTrainer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The naive way: the host's loss, and the term from a forward of its own."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    keep = inputs["completion_ids"].size(1)
    logits = trainer.model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1).logits[:, :-1].float()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["completion_ids"].flatten(), reduction="none")
    return COEFF * (nll.view(-1, keep) * inputs["wm_weights"]).sum() / inputs["wm_num_tokens"]


class Arm:
    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device
        if name == "ours":
            self.trainer = make_trainer(WorldModelGRPOTrainer, device, world_model=EchoConfig(COEFF))
            self.trainer._wm_window.position = -1  # never the end of a window: logging is not part of a step
        else:
            self.trainer = make_trainer(GRPOTrainer, device)
        self.trainer.model.to(device).train()
        self.trainer.current_gradient_accumulation_steps = 1
        self.inputs = make_inputs(device)

    def step(self) -> float:
        """Seconds of one forward and backward: CPU seconds on a CPU, wall seconds on a GPU."""
        self.trainer.model.zero_grad()
        if self.device == "cuda":
            torch.cuda.synchronize()
        clock = time.process_time if self.device == "cpu" else time.perf_counter
        start = clock()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.trainer.compute_loss(self.trainer.model, self.inputs)
            if self.name == "second forward":
                loss = loss + second_forward(self.trainer, self.inputs)
        loss.backward()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return clock() - start


def peak_memory(name: str, device: str) -> float:
    """MiB at the peak of three steps. On a CPU the process's resident set, so each arm has a process of its own."""
    arm = Arm(name, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        arm.step()
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    # not getrusage: its peak is inherited from the process that started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SHAPES), default="cpu")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(peak_memory(options.memory_of, options.device))
        return

    arms = [Arm(name, options.device) for name in ARMS]
    for arm in arms:
        arm.step()
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for repeat in range(options.repeats):  # in turn, and in changing order, so that whatever else runs hits all alike
        for arm in arms if repeat % 2 else reversed(arms):
            seconds[arm.name].append(arm.step())
    memory = {}
    for name in ARMS:
        command = [sys.executable, __file__, "--device", options.device, "--memory-of", name]
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
    shape = SHAPES[options.device]
    result = {
        "question": "forward + backward of one micro-batch, against stock TRL, paired in one run",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else f"CPU ({platform.machine()})",
        "versions": {"torch": torch.__version__, "trl": trl.__version__, "transformers": transformers.__version__},
        "parameters": sum(p.numel() for p in arms[0].trainer.model.parameters()),
        "tokens": shape["batch"] * (shape["prompt"] + shape["completion"]),
        "dtype": shape["dtype"],
        "repeats": options.repeats,
        "arms": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"step_time_{options.device}.json").write_text(json.dumps(result, indent=2) + "\n")
    stamp(RESULTS / f"step_time_{options.device}.json", vars(options))
    print(f"{'arm':16s} {'median s':>9s} {'ratio':>7s} {'quartiles':>15s} {'of minima':>9s} {'MiB':>7s} {'ratio':>6s}")
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['arm']:16s} {row['seconds_median']:9.4f} {row['ratio_median']:7.3f} {low:7.3f}-{high:.3f}   "
            f"{row['ratio_of_minima']:9.3f} {row['peak_mib']:7.0f} {row['memory_ratio']:6.3f}"
        )


if __name__ == "__main__":
    main()
