"""What the world-model term costs: forward + backward of the real trainers, with it and without, paired in one run.

A step makes the term's columns from the environment's spans and counts N, as an optimizer step does, and then computes the loss
and its gradient. `paired.py` lists the objectives, and says when one is within noise of the plain one. Beside them the naive way,
a second forward for the term. Writes benchmarks/results/step_time_<device>.json and .md.

    python benchmarks/step_time.py                 # CPU, 5M parameters
    python benchmarks/step_time.py --device cuda   # 0.5B parameters (the shape of Qwen2.5-0.5B), bf16, 4k tokens
"""

import argparse
import contextlib
import gc
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
import trl
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer

import paired
from paired import COEFF, OBJECTIVES
from stamps import stamp
from support import on_trl
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.tokens.spans import Origin, Span
from wm_plugin.trl import WorldModelGRPOTrainer

RESULTS = Path(__file__).parent / "results"
ARMS = ("stock", *OBJECTIVES, "second forward")
OUT_OF_MEMORY = math.inf  # MiB of an arm that did not fit
BLOCK = 32  # tokens of a turn, and of what the environment answers
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {  # to see that it runs
        "batch": 4,
        "prompt": 8,
        "completion": 128,
        "dtype": "float32",
        "config": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": 512,
        },
    },
    "cpu": {
        "batch": 4,
        "prompt": 64,
        "completion": 192,
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
    "cuda": {  # two sequences: a second forward keeps two graphs, and has to fit 80 GB
        "batch": 2,
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


def make_trainer(cls: type[GRPOTrainer], kind: str, **kwargs: Any) -> GRPOTrainer:
    shape = SHAPES[kind]
    torch.manual_seed(0)
    tokenizer = on_trl.make_tokenizer()
    config = Qwen2Config(
        **shape["config"], max_position_embeddings=8192, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id
    )
    model = Qwen2ForCausalLM(config).to(getattr(torch, shape["dtype"]))
    args = on_trl.config(
        use_cpu=kind != "cuda",
        bf16=shape["dtype"] == "bfloat16",
        per_device_train_batch_size=shape["batch"],
        num_generations=shape["batch"],
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


def make_inputs(kind: str) -> dict[str, torch.Tensor]:
    """A micro-batch as the host hands it to its loss; half of the completion comes from the environment."""
    shape = SHAPES[kind]
    batch, prompt, completion = shape["batch"], shape["prompt"], shape["completion"]
    generator = torch.Generator().manual_seed(1)
    vocabulary = shape["config"]["vocab_size"]
    tool_mask = (torch.arange(completion) // BLOCK % 2 == 0).long().expand(batch, -1).contiguous()
    return {
        "prompt_ids": torch.randint(vocabulary, (batch, prompt), generator=generator),
        "prompt_mask": torch.ones(batch, prompt, dtype=torch.long),
        "completion_ids": torch.randint(vocabulary, (batch, completion), generator=generator),
        "completion_mask": torch.ones(batch, completion, dtype=torch.long),
        "tool_mask": tool_mask,
        "advantages": torch.linspace(-1, 1, batch),
        "num_items_in_batch": tool_mask.sum(),
        "wm_masked": torch.zeros(batch),
    }


def origins(length: int) -> list[Origin]:
    """The environment's spans of a completion: a tool's results and a user's answers in turn."""
    starts = range(BLOCK, length, 2 * BLOCK)
    sources = [("tool", "run_code"), ("user", None)]
    return [
        Origin(Span(start, min(start + BLOCK, length), *sources[place % 2], True)) for place, start in enumerate(starts)
    ]


def second_forward(trainer: GRPOTrainer, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The naive way: the host's loss, and the term from a forward of its own."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    keep = inputs["completion_ids"].size(1)
    logits = trainer.model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1).logits[:, :-1].float()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["completion_ids"].flatten(), reduction="none")
    selected = 1 - inputs["tool_mask"]
    return COEFF * (nll.view(-1, keep) * selected).sum() / selected.sum()


class Arm:
    def __init__(self, name: str, kind: str) -> None:
        self.name, self.device = name, "cuda" if kind == "cuda" else "cpu"
        if name in OBJECTIVES:
            self.trainer = make_trainer(WorldModelGRPOTrainer, kind, world_model=OBJECTIVES[name])
            self.trainer._wm_window.position = -1  # never the end of a window: logging is not part of a step
        else:
            self.trainer = make_trainer(GRPOTrainer, kind)
        self.trainer.model.to(self.device).train()
        self.trainer.current_gradient_accumulation_steps = 1
        self.inputs = {name: value.to(self.device) for name, value in make_inputs(kind).items()}
        batch, length = self.inputs["completion_ids"].shape
        self.spans = [origins(length) for _ in range(batch)]
        self.scored = [([], float(row % 2)) for row in range(batch)]
        self.logps = torch.rand(batch, length, device=self.device).neg().requires_grad_()

    def columns(self) -> dict[str, torch.Tensor]:
        """What the term adds to a micro-batch, from the spans."""
        columns: dict[str, torch.Tensor] = {}
        for one in self.trainer._wm_running:
            spans = one.weigh(self.spans, [False] * len(self.spans), Tally(), rollouts=self.scored)
            columns |= one.columns(spans, self.logps.size(1))
        columns = {name: values.to(self.device) for name, values in columns.items()}
        counts = self.trainer._count({**self.inputs, **columns})
        return {**columns, "wm_num_tokens": counts[:, 0]}

    def step(self) -> float:
        """Seconds of one forward and backward: CPU seconds on a CPU, wall seconds on a GPU."""
        self.trainer.model.zero_grad()
        return seconds(self.device, self._step)

    def _step(self) -> None:
        inputs = {**self.inputs, **self.columns()} if self.name in OBJECTIVES else self.inputs
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.trainer.compute_loss(self.trainer.model, inputs)
            if self.name == "second forward":
                loss = loss + second_forward(self.trainer, self.inputs)
        loss.backward()

    def term(self) -> float:
        """Seconds of the term alone: its columns, its count, its loss and the gradient in the log-probabilities."""
        return seconds(self.device, self._term)

    def _term(self) -> None:
        loss = self.trainer._wm_add(self.logps.sum() * 0, self.logps, {**self.inputs, **self.columns()})
        loss.backward()


def seconds(device: str, function: Callable[[], None]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def measure(kind: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Compare all arms, and yield what is known after each round."""
    memory = {} if kind == "tiny" else peak_memory(kind)
    arms = {name: Arm(name, kind) for name in ARMS if memory.get(name) != OUT_OF_MEMORY}
    for arm in arms.values():
        arm.step()
    ours = {name: arm.term for name, arm in arms.items() if name in OBJECTIVES}
    *_, _ = paired.take_turns(ours, 5)
    *_, term = paired.take_turns(ours, 100)
    shape, stock = SHAPES[kind], arms["stock"].trainer.model
    facts = {
        "question": "forward + backward of a micro-batch, with columns and count, against stock TRL and against the plain term",
        "rule": paired.RULE,
        "device": torch.cuda.get_device_name() if kind == "cuda" else f"CPU ({platform.machine()}), one thread",
        "versions": {"torch": torch.__version__, "trl": trl.__version__, "transformers": transformers.__version__},
        "parameters": sum(p.numel() for p in stock.parameters()),
        "attention": stock.config._attn_implementation,
        "tokens": shape["batch"] * (shape["prompt"] + shape["completion"]),
        "dtype": shape["dtype"],
        "did_not_fit": [name for name in ARMS if name not in arms],
    }
    for taken in paired.take_turns({name: arm.step for name, arm in arms.items()}, repeats):
        yield {**facts, "repeats": len(taken["stock"]), "arms": paired.rows(taken, memory, term)}


def peak_memory(kind: str) -> dict[str, float]:
    """MiB of each arm at the peak of three steps: of a GPU, or of the resident set, for which each has a process of its own."""
    memory = {}
    for name in paired.MEMORY:
        if kind == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            memory[name] = OUT_OF_MEMORY
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                arm = Arm(name, kind)
                for _ in range(3):
                    arm.step()
                memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
            arm = None
            gc.collect()
            continue
        command = [sys.executable, __file__, "--device", kind, "--memory-of", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
        memory[name] = float(done.stdout.split()[-1])
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--memory-of", choices=ARMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        arm = Arm(options.memory_of, options.device)
        for _ in range(3):
            arm.step()
        print(paired.resident())
        return
    *_, result = measure(options.device, options.repeats)
    paired.write(RESULTS / f"step_time_{options.device}.json", "What the term costs on TRL", result)
    stamp(RESULTS / f"step_time_{options.device}.json", vars(options))


if __name__ == "__main__":
    main()
