"""Qwen-AgentWorld on verl: from rollouts through `wm data build` to what a judge is asked, byte for byte as on TRL."""

import asyncio
import functools

import pytest

pytest.importorskip("verl")

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset

from support import agentworld
from support.agreement import read_tokenizer

TOKENIZER = read_tokenizer()  # of bytes: any text comes out as it went in


def batches(path, folder):
    """The rows of a file as verl's own dataset reads and its agent loop hands them over."""
    config = OmegaConf.create(
        {"cache_dir": str(folder / "cache"), "max_prompt_length": 10**6, "filter_overlong_prompts": False}
    )
    dataset = RLHFDataset(str(path), TOKENIZER, config)
    for item in (dataset[number] for number in range(len(dataset))):
        text = agentworld.output(item["reward_model"]["ground_truth"])
        response = torch.tensor([[*TOKENIZER.encode(text), TOKENIZER.eos_token_id]])
        prompt = torch.tensor([[1]])
        mask = torch.ones(1, response.shape[1] + 1, dtype=torch.long)
        tensors = {"prompts": prompt, "responses": response, "attention_mask": mask}
        fields = {name: np.array([value]) for name, value in item.items() if not isinstance(value, torch.Tensor)}
        yield DataProto(TensorDict(tensors, batch_size=1), fields)


@functools.cache
def stock():
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", ["hydra.searchpath=[pkg://wm_plugin.recipes.verl]", "+wm=reward"])


def config(server, batched):
    block = agentworld.block(server)
    made = OmegaConf.create(OmegaConf.to_container(stock(), resolve=False))
    if batched:
        made.wm.reward = block
    else:
        made.reward.reward_manager = {"source": "register", "name": "naive"}
        function = {"path": "pkg://wm_plugin.verl.rewards", "name": "compute_score", "reward_kwargs": block}
        made.reward.custom_reward_function = function
    return made


def run(server, rows, *, batched):
    async def scored():
        manager = load_reward_manager(config(server, batched), TOKENIZER)
        return await asyncio.gather(*(manager.run_single(row) for row in rows))

    return [result["reward_score"] for result in asyncio.run(scored())]


@pytest.mark.parametrize("batched", [True, False])
def test_the_judge_is_asked_the_same_on_both_hosts(tmp_path, batched):
    expected, scores = agentworld.measured(tmp_path)
    assert expected == agentworld.stored()
    rows = list(batches(agentworld.build(tmp_path, "verl", ".parquet"), tmp_path))
    with agentworld.judge() as server:
        targets = [row[0].non_tensor_batch["reward_model"]["ground_truth"] for row in rows]
        assert run(server, rows, batched=batched) == [scores[target] for target in targets]
        assert agentworld.requests(server) == expected


def test_a_row_without_a_context_shows_its_prompt(tmp_path):
    prompt = [{"role": "system", "content": "Be a shell."}, {"role": "user", "content": "ls"}]
    row = {"data_source": "x", "prompt": prompt, "reward_model": {"ground_truth": "a"}, "extra_info": {"index": 0}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    with agentworld.judge() as server:
        run(server, list(batches(tmp_path / "rows.parquet", tmp_path)), batched=True)
        assert server.received == [agentworld.prompt_request()]
