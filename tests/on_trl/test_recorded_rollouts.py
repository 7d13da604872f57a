"""Recorded trajectories through ECHO: what `wm data build` wrote is what a rollout function returns."""

import pyarrow.parquet
import pytest
import torch

from support.on_trl import run
from wm_plugin import EchoConfig
from wm_plugin.data.building import build
from wm_plugin.data.write import write
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.rollouts import rollouts
from wm_plugin.tokens.spans import zero_runs
from wm_plugin.trl import WorldModelGRPOTrainer


def recorded(path):
    """A rollout function that plays the rows of a file, by the `row` in the prompt. 1 in their mask: the agent's tokens."""
    rows = pyarrow.parquet.read_table(path).to_pylist()

    def function(prompts, trainer):
        chosen = [rows[int(prompt[-1]["content"])] for prompt in prompts]
        begin = [row["assistant_masks"].index(1) for row in chosen]
        masks = [row["assistant_masks"][start:] for row, start in zip(chosen, begin, strict=True)]
        return {
            "prompt_ids": [row["input_ids"][:start] for row, start in zip(chosen, begin, strict=True)],
            "completion_ids": [row["input_ids"][start:] for row, start in zip(chosen, begin, strict=True)],
            "env_mask": masks,
            "env_spans": [[(*part, "tool", "move", True) for part in zero_runs(torch.tensor(mask))] for mask in masks],
            "logprobs": [[0.0] * len(mask) for mask in masks],  # of a sampler: there was none
        }

    return function


def no_reward(completions, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize("information", [pytest.param(False, marks=pytest.mark.slow), True])
def test_recorded_trajectories_train_a_world_model(tmp_path, information):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "policy")
    make_model(tokenizer, seed=0).save_pretrained(tmp_path / "policy")
    write(rollouts(32, seed=0), tmp_path / "t.jsonl")
    built = build(tmp_path / "t.jsonl", "imitation", "trl", tmp_path / "t.parquet", tokenizer=tmp_path / "policy")
    args = {"output_dir": str(tmp_path / "run"), "max_steps": 12, "learning_rate": 3e-3, "max_completion_length": 512}
    args |= {"num_generations": 2, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    trainer, _ = run(
        WorldModelGRPOTrainer,
        model=make_model(tokenizer, seed=0),
        reward_funcs=[no_reward],
        args=args,
        rows=[{"prompt": [{"role": "user", "content": str(number)}]} for number in range(built.rows)],
        environment=None,
        processing_class=tokenizer,
        rollout_func=recorded(tmp_path / "t.parquet"),
        world_model=EchoConfig(1.0, turn_information=information),
    )
    logs = [row for row in trainer.state.log_history if "echo/nll" in row]
    assert logs[-1]["echo/nll"] < 0.75 * logs[0]["echo/nll"]
    assert logs[0]["echo/tokens"] > 500
    assert ("echo/information" in logs[0]) == information
