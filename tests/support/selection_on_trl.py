"""TRL's side of `support.selection`: its real trainer on those turns, and on the same rollouts as a `rollout_func` returns them.

cd tests && python -m support.selection_on_trl     writes support/agreement_data/selection.json
"""

import json
from copy import deepcopy
from typing import Any

import torch

from support import selection
from support.agreement import make_model
from support.agreement_on_trl import Played, tokenizer
from support.on_trl import run
from support.selection import CONFIGS, FILE, LIMIT, OWN_CONFIGS, TURNS, RaisingTools, name_of, reward_of
from wm_plugin import EchoConfig
from wm_plugin.objectives import Objectives
from wm_plugin.trl import WorldModelGRPOTrainer

TOKENIZER = tokenizer()


class Recorded(WorldModelGRPOTrainer):
    """Remembers its generation batch, and selects from it under other configurations than its own."""

    def _environment_columns(self, inputs: list[dict[str, Any]], output: dict[str, Any]) -> dict[str, torch.Tensor]:
        self.recorded = inputs, dict(output), deepcopy(self._wm_rollouts.calls)
        return super()._environment_columns(inputs, output)

    def select(self, echo: EchoConfig) -> dict[str, torch.Tensor]:
        inputs, output, calls = self.recorded
        objectives = Objectives({"": echo})
        (one,) = self._wm_make_running(objectives, ())
        one.tools = self._wm_running[0].tools
        self._wm, self._wm_running, self._wm_rollouts.calls = objectives, [one], deepcopy(calls)
        return {**output, **super()._environment_columns(inputs, output)}


class Ours(Played, Recorded):
    turns = TURNS


def last_turn(ids: list[int]) -> str:
    """The name of a rollout: how what it said last begins."""
    text = TOKENIZER.decode(ids).rpartition("<|im_start|>assistant\n")[2]
    return name_of(text.removesuffix("<|im_end|>"))


def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [reward_of(last_turn(ids)) for ids in completion_ids]


def train(cls: type[Recorded], **kwargs: Any) -> Recorded:
    args = {"max_steps": 1, "gradient_accumulation_steps": 1, "num_generations": 4, "max_completion_length": LIMIT}
    args |= {"per_device_train_batch_size": sum(map(len, TURNS.values())), "shuffle_dataset": False}
    kwargs |= {"reward_funcs": [reward], "processing_class": TOKENIZER, "world_model": EchoConfig(1.0)}
    prompts = [{"prompt": [{"role": "user", "content": task}]} for task in TURNS]
    return run(cls, model=make_model(TOKENIZER), args=args, rows=prompts, **kwargs)[0]


def rows(trainer: Recorded, echo: EchoConfig) -> dict[str, dict[str, Any]]:
    """Every completion by its name: its tokens, and what was selected of it."""
    batch, found = trainer.select(echo), {}
    for row in range(len(batch["completion_ids"])):
        inside = batch["completion_mask"][row] == 1
        ids = batch["completion_ids"][row][inside].tolist()
        mask, weights = (batch[key][row][inside] for key in ("tool_mask", "wm_weights"))
        tools = selection.names_of(batch["wm_tool_ids"][row][inside].tolist(), trainer._wm_running[0].tools)
        count = int(echo.count(weights[None], (1 - mask)[None], 1))
        name = last_turn(ids)
        found[name] = {
            "prompt": batch["prompt_ids"][row][batch["prompt_mask"][row] == 1].tolist(),
            "response": ids,
            "mask": mask.tolist(),
            "selected": selection.selected(name, weights.tolist(), tools, count),
        }
    return found


def from_stored(stored: dict[str, dict[str, Any]]) -> Any:
    """A rollout_func that returns what was rolled out before, with spans of its own."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        taken = [stored[name_of(turns[-1])] for rollouts in TURNS.values() for turns in rollouts]
        return {
            "prompt_ids": [row["prompt"] for row in taken],
            "completion_ids": [row["response"] for row in taken],
            "logprobs": [[0.0] * len(row["response"]) for row in taken],
            "env_mask": [row["mask"] for row in taken],
            "env_spans": [selection.own_spans(row["mask"]) for row in taken],
        }

    return rollout


def measure() -> dict[str, Any]:
    looped = train(Ours, environment=RaisingTools)
    stored = rows(looped, EchoConfig(1.0))
    own = train(Recorded, environment=None, rollout_func=from_stored(stored))
    fields = ("prompt", "response", "mask")
    return {
        "rollouts": {name: {field: row[field] for field in fields} for name, row in stored.items()},
        "loop": {name: chosen(looped, CONFIGS[name]) for name in CONFIGS},
        "own": {name: chosen(own, CONFIGS[name]) for name in OWN_CONFIGS},
    }


def chosen(trainer: Recorded, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: row["selected"] for name, row in rows(trainer, EchoConfig(1.0, **fields)).items()}


def main() -> None:
    FILE.write_text(json.dumps(measure(), indent=None, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
