"""What finding the environment's tokens costs, as a share of the rollout that they come from.

Two rollouts: the tiny policy on the grid, whose turns are one token each and whose completions are 95 % environment tokens (the
worst case that we know), and a model of 3M parameters that samples 300 tokens a turn. Writes benchmarks/results/bookkeeping.json.
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import trl
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer

from stamps import stamp
from support import on_trl
from wm_plugin import EchoConfig
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import behaviour_cloning
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.grid import GridEnvironment, dataset_rows

RESULTS = Path(__file__).parent / "results"


class Timed(WorldModelGRPOTrainer):
    """CPU seconds of a rollout, and of our part in it."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.ours = 0.0
        start = time.process_time()
        output = super()._generate_and_score_completions(inputs)
        self.times.append((time.process_time() - start, self.ours, int((output["wm_weights"] != 0).sum())))
        return output

    def _environment_columns(self, *args: Any) -> Any:
        start = time.process_time()
        columns = super()._environment_columns(*args)
        self.ours += time.process_time() - start
        return columns


class Sampled(on_trl.Scripted, Timed):
    """Samples its turns, at the cost that this has, and then says what the script says."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        GRPOTrainer._generate_single_turn(self, prompt_ids, *args, **kwargs)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


def measure(trainer: Timed, name: str, skip: int) -> dict[str, Any]:
    trainer.times = []
    trainer.train()
    rollouts = trainer.times[skip:]
    return {
        "rollout": name,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "completions": trainer.args.per_device_train_batch_size,
        "environment_tokens": statistics.median(tokens for _, _, tokens in rollouts),
        "rollout_seconds": statistics.median(whole for whole, _, _ in rollouts),
        "our_seconds": statistics.median(ours for _, ours, _ in rollouts),
        "share": statistics.median(ours / whole for whole, ours, _ in rollouts),
    }


def grid(folder: str) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    behaviour_cloning(model, tokenizer, 0)
    size = {"per_device_train_batch_size": 128, "num_generations": 8, "gradient_accumulation_steps": 1}
    length = {"max_completion_length": 133, "max_tool_calling_iterations": 6}
    trainer = Timed(
        model=model,
        args=on_trl.config(output_dir=folder, max_steps=12, **size, **length),
        train_dataset=Dataset.from_list(dataset_rows(256)),
        processing_class=tokenizer,
        environment_factory=GridEnvironment,
        world_model=EchoConfig(1.0),
    )
    return measure(trainer, "grid, one token a turn", skip=2)


def tools(folder: str) -> dict[str, Any]:
    environment = on_trl.ToolEnvironment()
    tokenizer = on_trl.make_tokenizer([environment.run_code, environment.lookup_doc])
    config = Qwen2Config(
        vocab_size=8192, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    size = {"per_device_train_batch_size": 16, "num_generations": 4, "gradient_accumulation_steps": 1}
    trainer = Sampled(
        model=Qwen2ForCausalLM(config),
        reward_funcs=[on_trl.reward],
        args=on_trl.config(output_dir=folder, max_steps=3, **size),
        train_dataset=on_trl.dataset(),
        processing_class=tokenizer,
        environment_factory=on_trl.ToolEnvironment,
        world_model=EchoConfig(1.0),
    )
    return measure(trainer, "two tools, 300 sampled tokens a turn", skip=1)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [grid(folder), tools(folder)]
    result = {
        "question": "CPU seconds for finding the environment's tokens, as a share of the rollout's",
        "device": f"CPU ({platform.machine()})",
        "versions": {"torch": torch.__version__, "trl": trl.__version__},
        "rollouts": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "bookkeeping.json").write_text(json.dumps(result, indent=2) + "\n")
    stamp(RESULTS / "bookkeeping.json", {})
    for row in rows:
        print(
            f"{row['rollout']}: {row['our_seconds'] * 1e3:.1f} ms of {row['rollout_seconds']:.2f} s "
            f"for {row['environment_tokens']:.0f} tokens: {row['share']:.2%}"
        )


if __name__ == "__main__":
    main()
