"""The scores of a file's rows on verl, whose policy says what a test wants: as its dataset reads and its loop hands them over."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset

from support.agreement import read_tokenizer
from support.verl_recipes import stock

TOKENIZER = read_tokenizer()  # of bytes: any text comes out as it went in
WAYS = ("manager", "function")


def _items(path: Path, say: Callable[[str], str]) -> Iterator[DataProto]:
    settings = {"cache_dir": str(path.parent / "cache"), "max_prompt_length": 10**6, "filter_overlong_prompts": False}
    dataset = RLHFDataset(str(path), TOKENIZER, OmegaConf.create(settings))
    for item in (dataset[number] for number in range(len(dataset))):
        text = say(item["reward_model"]["ground_truth"])
        response = torch.tensor([[*TOKENIZER.encode(text), TOKENIZER.eos_token_id]])
        mask = torch.ones(1, response.shape[1] + 1, dtype=torch.long)
        tensors = {"prompts": torch.tensor([[1]]), "responses": response, "attention_mask": mask}
        fields = {name: np.array([value]) for name, value in item.items() if not isinstance(value, torch.Tensor)}
        yield DataProto(TensorDict(tensors, batch_size=1), fields)


def score(
    spec: dict[str, Any], path: Path, say: Callable[[str], str], way: str
) -> tuple[list[str], list[float], dict[str, float]]:
    """The targets of the rows, the score of what is said of each, and the figures of the first."""
    config = stock(groups="reward")
    if way == "manager":
        config.wm.reward = spec
    else:
        config.reward.reward_manager = {"source": "register", "name": "naive"}
        function = {"path": "pkg://wm_plugin.verl.rewards", "name": "compute_score", "reward_kwargs": spec}
        config.reward.custom_reward_function = function
    rows = list(_items(path, say))

    async def scored() -> list[dict[str, Any]]:
        manager = load_reward_manager(config, TOKENIZER)
        return await asyncio.gather(*(manager.run_single(row) for row in rows))

    found = asyncio.run(scored())
    targets = [row[0].non_tensor_batch["reward_model"]["ground_truth"] for row in rows]
    return targets, [one["reward_score"] for one in found], found[0]["reward_extra_info"]
