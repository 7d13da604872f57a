"""Any reward in verl, by config alone: one of ours by name, or any `(predictions: list[str], targets: list[str], **columns) ->
list[float]`, a function or an instance, sync or async, by its dotted path.

In batches, for a reward that runs a model or asks a judge:

    'hydra.searchpath=[pkg://wm_plugin.recipes.verl]' +wm=reward \\
    'wm.reward={path: rwml, kwargs: {model: Qwen/Qwen3-Embedding-8B, tag: next_state}}' wm.reward_batch=32 wm.reward_wait_ms=20

The group `wm=reward` names the manager of this module, one worker, and the sampler of `wm_plugin.verl.sampler`. One worker,
because each has a reward of its own (verl's default is 8, so many copies of the model), and verl sends every trajectory to a
worker picked at random, so that batches among several come out small. A judge wants batches larger than its server's
`concurrency`.

One trajectory a call, by verl's own manager `naive`:

    reward.custom_reward_function.path=pkg://wm_plugin.verl.rewards reward.custom_reward_function.name=compute_score
    '+reward.custom_reward_function.reward_kwargs={path: rouge, kwargs: {tag: next_state}}'

The prediction is the text of the whole response, the target is `reward_model.ground_truth`, columns are the row's other fields
and those in its `extra_info`, where `wm data build` and `wm_plugin.verl.data` put what a dataset has of its own.

What a reward says of its last call (`figures`) goes into `reward_extra_info` of all rows of the call, as `wm/<reward>/<figure>`.
verl logs means over rows: val-aux/<data_source>/wm/rwml/no_prediction/mean@1 in validation; and, by our sampler,
wm/rwml/no_prediction in training. A figure that is a mean over rows comes out exactly, whatever the batches were.

A reward that fails is an error of the trajectory, never a score of 0; verl logs it and leaves the trajectory's group out. A
`UserError` is about more than a row (a judge that fails too often, a server that refuses the key): all rows fail from then on,
and the sampler stops the run with its line; without the sampler, verl stops at the first batch of which nothing is left.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from wm_plugin.errors import UserError
from wm_plugin.rewards.make import check_spec, check_tagged, make
from wm_plugin.verl.micro_batch import FIGURES, LoadedReward, MicroBatcher
from wm_plugin.verl.names import INFO


def load_reward(spec: Any, *, field: str = "wm.reward") -> LoadedReward:
    """The reward that a config describes, as `wm_plugin.rewards.make` reads it.

    Args:
        spec: a name or a dotted path, or a mapping (of OmegaConf too) with `path`, either of them, and `kwargs`.
        field: the setting, for messages.

    Raises:
        UserError: it is not set, does not exist, does not take these kwargs, is no reward, or has no tag.
    """
    spec = _plain(spec)
    function, path = make(spec, field=field), reward_path(spec, field=field)
    check_tagged(function, path)
    return LoadedReward(path, function)


def check_reward(spec: Any) -> None:
    """Refuse what `load_reward` would refuse, as far as it shows without making the reward, which may load a model."""
    check_spec(_plain(spec), reward_path(spec))


def reward_path(spec: Any, *, field: str = "wm.reward") -> str:
    """The name or the dotted path in a config's description of a reward. Raises UserError where there is none."""
    spec = _plain(spec)
    path = spec.get("path") if isinstance(spec, Mapping) else spec
    if not isinstance(path, str):
        raise UserError(f"{field} is {spec!r:.100}; write a name, or {{path: NAME, kwargs: {{...}}}}")
    return path


class BatchedRewardManager(RewardManagerBase):
    """verl's reward manager over `wm.reward`, in batches of at most `wm.reward_batch` (32) trajectories, the first of which waits
    at most `wm.reward_wait_ms` (20). `reward.num_workers=1` makes one copy of the reward, and large batches.

    Raises:
        UserError: a setting does not fit, or another one would keep verl from asking this reward.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_router: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        wm, reward = config.get("wm") or {}, config.get("reward") or {}
        for name, key in (("custom_reward_function", "path"), ("reward_model", "enable")):
            if (reward.get(name) or {}).get(key):
                raise UserError(f"reward.{name}.{key} is set beside the manager of wm.reward; leave one of them out")
        batch, wait = wm.get("reward_batch", 32), wm.get("reward_wait_ms", 20)
        if type(batch) is not int or batch < 1:
            raise UserError(f"wm.reward_batch is {batch!r}; write a number of trajectories >= 1")
        if type(wait) not in (int, float) or not 0 <= wait < math.inf:
            raise UserError(f"wm.reward_wait_ms is {wait!r}; write milliseconds >= 0")
        self.batcher = MicroBatcher(load_reward(wm.get("reward")), batch, wait / 1000)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score one trajectory.

        Args:
            data: a DataProto of its sequences, of which the last is scored, as in verl's own managers. `responses` (n, T), padded
                on the right; `attention_mask` (n, P + T), 1 = the token counts.

        Returns:
            `reward_score`, and `reward_extra_info`: the environment's figures, `acc` (the score), `reward_batch_size` and
            the reward's figures.
        """
        row = data[-1:][0]
        fields = {key: _plain(value) for key, value in row.non_tensor_batch.items()}
        ids, length = row.batch["responses"], fields.get("response_len")
        if length is None:  # with several sequences the mask is not aligned with the responses, but there is a length
            length = int(row.batch["attention_mask"][-len(ids) :].sum())
        text = await asyncio.to_thread(self.tokenizer.decode, ids[:length].tolist(), skip_special_tokens=True)
        target = _target((fields.get("reward_model") or {}).get("ground_truth"))
        score, figures = await self.batcher.score(text, target, _columns(fields))
        environment = (fields.get("tool_extra_fields") or {}).get(INFO) or {}
        return {"reward_score": score, "reward_extra_info": {**environment, "acc": score, **figures}}


_batchers: dict[str, MicroBatcher] = {}  # of compute_score: a model is loaded once a process


async def compute_score(solution_str: str, ground_truth: Any, path: Any = None, kwargs: Any = None, **row: Any) -> dict:
    """verl's custom reward function, by `reward_kwargs`. Gives `score`, `acc` (the same) and the figures."""
    where = "reward.custom_reward_function.reward_kwargs"
    for name in row.keys() - {"data_source", "extra_info", "reward_router_address", "reward_model_tokenizer"}:
        raise UserError(f"{where} has no field {name!r}; arguments of the reward itself go under kwargs")
    key = json.dumps([path, _plain(kwargs)], sort_keys=True, default=repr)
    if key not in _batchers:
        _batchers[key] = MicroBatcher(load_reward({"path": path, "kwargs": kwargs}, field=where))
    columns = _columns({name: _plain(value) for name, value in row.items()})
    score, figures = await _batchers[key].score(solution_str, _target(_plain(ground_truth)), columns)
    own = {name: value for name, value in figures.items() if name.startswith(FIGURES)}
    return {**(columns.get(INFO) or {}), **own, "score": score, "acc": score}


def stop_reason(worker: Any) -> str | None:
    """Why a reward in a `RewardLoopWorker` of verl's is not called any more; None while it is. To be run inside the worker."""
    manager = worker.reward_manager
    batchers = [manager.batcher] if isinstance(manager, BatchedRewardManager) else list(_batchers.values())
    return next((f"reward {b.reward.name}: {b.stopped}" for b in batchers if b.stopped is not None), None)


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    info = row.get("extra_info") or {}
    return {**info, **row, "data_source": row.get("data_source"), "extra_info": info}


def _target(truth: Any) -> str:
    if not isinstance(truth, str):
        found = "missing" if truth is None else f"of type {type(truth).__name__}"
        raise UserError(f"reward_model.ground_truth is {found}; write the text to compare with into the dataset")
    return truth


def _plain(value: Any) -> Any:
    """A value without numpy's or OmegaConf's wrapping."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
