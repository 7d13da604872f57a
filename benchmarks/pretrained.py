"""What the world-model term costs on TRL with a real pretrained model: whole steps of SmolLM2-135M on the SQL tasks, paired.

A step is the rollout (sampling, the world, finding the environment's tokens) and the forward and backward of the update. Both
trainers have one model, whose weights do not change, and sample with the same random numbers. An untrained policy makes no call:
its turns are sampled, at the cost that this has, and then replaced by queries. Writes benchmarks/results/pretrained.json.

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
    python benchmarks/pretrained.py --model runs/smollm2_135m
"""

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from stamps import stamp
from support import on_trl
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.sql import SqlEnvironment, dataset_rows

RESULTS = Path(__file__).parent / "results"
TURNS, TURN_TOKENS = 3, 40
QUERIES = ["SELECT name FROM employees", "SELECT * FROM orders WHERE id < {}", "SELECT nme FROM products WHERE id = {}"]


class Timed:
    """CPU seconds of a step and its parts: `step` is all of it, `rollout` a part of that, `ours` of the rollout."""

    seconds: dict[str, float]
    luck: random.Random

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._time("step", super().training_step, *args, **kwargs)  # type: ignore[misc]

    def _generate_and_score_completions(self, *args: Any) -> Any:
        return self._time("rollout", super()._generate_and_score_completions, *args)  # type: ignore[misc]

    def _environment_columns(self, *args: Any) -> Any:
        columns = self._time("ours", super()._environment_columns, *args)  # type: ignore[misc]
        self.tokens = int((columns["wm_weights"] != 0).sum())
        return columns

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        super()._generate_single_turn(prompt_ids, *args, **kwargs)  # type: ignore[misc]
        tokenizer = self.processing_class  # type: ignore[attr-defined]
        turns = []
        for ids in prompt_ids:
            query = self.luck.choice(QUERIES).format(self.luck.randint(1, 9))
            call = f'<tool_call>{{"name": "run_query", "arguments": {{"query": "{query}"}}}}</tool_call>'
            over = tokenizer.decode(ids).count("<|im_start|>tool") >= TURNS
            turns.append(tokenizer(("I am done." if over else call) + tokenizer.eos_token).input_ids)
        return turns, None

    def _time(self, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        value = function(*args, **kwargs)
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - start
        return value


class Stock(Timed, GRPOTrainer):
    pass


class Ours(Timed, WorldModelGRPOTrainer):
    pass


def make_trainer(cls: Any, model: Any, tokenizer: Any, completions: int, folder: str, **settings: Any) -> Any:
    return cls(
        model=model,
        args=on_trl.config(
            output_dir=folder,
            max_steps=1,
            logging_steps=1000,
            optim="sgd",  # no state, and a learning rate of 0
            per_device_train_batch_size=completions,
            num_generations=completions,
            gradient_accumulation_steps=1,
            max_completion_length=1024,
            max_tool_calling_iterations=TURNS + 1,
            generation_kwargs={"max_new_tokens": TURN_TOKENS},
            loss_type="dapo",
        ),
        train_dataset=Dataset.from_list(dataset_rows(4)),
        processing_class=tokenizer,
        environment_factory=SqlEnvironment,
        **settings,
    )


def step(trainer: Any, repeat: int) -> dict[str, float]:
    """CPU seconds of one step, by part."""
    trainer.seconds, trainer.luck = {}, random.Random(repeat)
    torch.manual_seed(repeat)
    trainer.train()
    seconds: dict[str, float] = trainer.seconds
    return {**seconds, "update": seconds["step"] - seconds["rollout"]}


def ratios(ours: list[dict[str, float]], stock: list[dict[str, float]], part: str) -> dict[str, Any]:
    values = sorted(mine[part] / theirs[part] for mine, theirs in zip(ours, stock, strict=True))
    return {
        "part": part,
        "stock_seconds_median": statistics.median(row[part] for row in stock),
        "ours_seconds_median": statistics.median(row[part] for row in ours),
        "ratio_median": statistics.median(values),
        "ratio_quartiles": [values[len(values) // 4], values[3 * len(values) // 4]],
        "ratio_of_minima": min(row[part] for row in ours) / min(row[part] for row in stock),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder that python -m wm_plugin.lab.tiny pretrained wrote")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--completions", type=int, default=4, help="of a step")
    parser.add_argument("--out", type=Path, default=RESULTS / "pretrained.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    seconds: dict[str, list[dict[str, float]]] = {"stock": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        own = (model, tokenizer, options.completions, folder)
        arms = {"stock": make_trainer(Stock, *own), "ours": make_trainer(Ours, *own, world_model=EchoConfig(1.0))}
        for trainer in arms.values():
            step(trainer, -1)
        for repeat in range(
            options.repeats
        ):  # in turn, and in changing order, so that whatever else runs hits both alike
            for name in sorted(arms, reverse=bool(repeat % 2)):
                seconds[name].append(step(arms[name], repeat))
    result = {
        "question": "CPU seconds of a whole step of GRPO, with the term against stock TRL, paired in one run",
        "device": f"CPU ({platform.machine()}), one thread",
        "versions": {"torch": torch.__version__, "trl": trl.__version__, "transformers": transformers.__version__},
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "completions": options.completions,
        "environment_tokens_of_the_last_step": arms["ours"].tokens,
        "repeats": options.repeats,
        "parts": [ratios(seconds["ours"], seconds["stock"], part) for part in ("step", "rollout", "update")],
        "finding_tokens_share_of_rollout": statistics.median(row["ours"] / row["rollout"] for row in seconds["ours"]),
        "finding_tokens_share_of_step": statistics.median(row["ours"] / row["step"] for row in seconds["ours"]),
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    stamp(options.out, vars(options))
    for row in result["parts"]:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['part']:8} {row['stock_seconds_median']:8.2f} s  {row['ratio_median']:.4f} ({low:.4f}-{high:.4f}), "
            f"of minima {row['ratio_of_minima']:.4f}"
        )
    print(f"finding the environment's tokens: {result['finding_tokens_share_of_rollout']:.2%} of the rollout")


if __name__ == "__main__":
    main()
