"""Any reward in verl, by config alone: one of this package by name, or any `(predictions: list[str], targets: list[str],
**columns) -> list[float]` by its dotted path, a function or an instance, sync or async.

In batches, for a reward that runs a model or asks a judge:

    'hydra.searchpath=[pkg://wm_plugin.recipes.verl]' +wm=reward \\
    'wm.reward={path: rwml, kwargs: {model: Qwen/Qwen3-Embedding-8B, tag: next_state}}' wm.reward_batch=32 wm.reward_wait_ms=20

The group `wm=reward` configures the reward manager of this module, one reward worker, and the sampler of
`wm_plugin.verl.sampler`. One worker, because every worker has its own copy of the reward (verl's default is 8 workers), and verl
sends each trajectory to a random worker, so that several workers only get small batches. For a judge, make batches larger than
its server's `concurrency`.

One trajectory per call, by verl's own manager `naive`:

    reward.custom_reward_function.path=pkg://wm_plugin.verl.rewards reward.custom_reward_function.name=compute_score
    '+reward.custom_reward_function.reward_kwargs={path: rouge, kwargs: {tag: next_state}}'

The prediction is the text of the whole response, the target is `reward_model.ground_truth`, and the columns are the row's other
fields and those of its `extra_info`, where `wm data build` and `wm_plugin.verl.data` put a dataset's own columns. A row without a
`context` gets its prompt as that, which verl gives to the manager of this module alone.

The figures of a reward's last call go into `reward_extra_info` of all its rows, as `wm/<reward>/<figure>`. verl logs means over
rows: val-aux/<data_source>/wm/rwml/no_prediction/mean@1 in validation and, by our sampler, wm/rwml/no_prediction in training. A
figure that is a mean over rows is therefore exact, whatever the batches were.

A reward that fails is an error of the trajectory, never a score of 0; verl logs the error and drops the trajectory's group. A
`UserError` concerns more than one row (a judge that fails too often, a server that refuses the key): all later rows fail too, and
the sampler stops the run with the message. Without the sampler, verl stops at the first batch that lost all its rows.
"""

import asyncio
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from wm_plugin.data.files import head, records
from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.hosted import FIGURES, HostedReward
from wm_plugin.rewards.make import check_spec, make
from wm_plugin.rewards.rule_truth import check_rules, rules_of_spec
from wm_plugin.verl.micro_batch import MicroBatcher
from wm_plugin.verl.names import INFO


def load_reward(spec: Any, *, field: str = "wm.reward") -> HostedReward:
    """Return the reward that a config describes, as in `wm_plugin.rewards.make`.

    Args:
        spec: a name or a dotted path, or a mapping (also OmegaConf's) of `path`, either of them, and `kwargs`.
        field: the name of the setting, for messages.

    Raises:
        UserError: the setting is missing, or the reward does not exist, does not take these kwargs, is not a reward, or has no
            tag.
    """
    spec = _plain(spec)
    function = make(spec, field=field)
    return HostedReward(reward_path(spec, field=field), function)


def check_reward(spec: Any) -> None:
    """Check a config's reward as `load_reward` does, as far as possible without making it, which may load a model."""
    check_spec(_plain(spec), reward_path(spec))


def check_truth(config: Any) -> str | None:
    """Return a warning if a reward's rules hold for few of the real observations in the training files.

    None: they hold for enough, there are no rules, or the files cannot be read here.

    Raises:
        UserError: they hold for none.
    """
    custom = config.reward.get("custom_reward_function") or {}
    ours = custom.get("path") == f"pkg://{__name__}"
    rules = rules_of_spec(_plain(custom.get("reward_kwargs") if ours else config.wm.get("reward")))
    return None if rules is None else check_rules(rules, _observed(config.data.train_files))


def _observed(paths: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of files: a reward's columns, and as `target` the real observation."""
    for name in [paths] if isinstance(paths, str) else paths or ():
        path = Path(name).expanduser()
        if "://" in name or not path.is_file():
            continue
        for record in records(path, head(path)):
            row = record.value if record.error is None else None
            if isinstance(row, Mapping) and isinstance(row.get("reward_model"), Mapping):
                info = row.get("extra_info")
                row = {**row, "extra_info": info if isinstance(info, Mapping) else None}
                yield {**_columns(row), "target": row["reward_model"].get("ground_truth")}


def reward_path(spec: Any, *, field: str = "wm.reward") -> str:
    """Return the name or the dotted path in a config's description of a reward.

    Raises:
        UserError: it is missing.
    """
    spec = _plain(spec)
    path = spec.get("path") if isinstance(spec, Mapping) else spec
    if not isinstance(path, str):
        raise UserError(f"{field} is {shown(spec)}; write a name, or {{path: NAME, kwargs: {{...}}}}")
    return path


class BatchedRewardManager(RewardManagerBase):
    """verl's reward manager for `wm.reward`.

    A call has at most `wm.reward_batch` (32) trajectories, and the first one waits for others at most `wm.reward_wait_ms` (20).
    With `reward.num_workers=1` there is one copy of the reward, and batches are large.

    Raises:
        UserError: a setting is invalid, or another setting would make verl bypass this reward.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_router: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        wm, reward = config.get("wm") or {}, config.get("reward") or {}
        for name, key in (("custom_reward_function", "path"), ("reward_model", "enable")):
            if (reward.get(name) or {}).get(key):
                raise UserError(f"reward.{name}.{key} is set beside the manager of wm.reward; leave one of them out")
        batch, wait = wm.get("reward_batch", 32), wm.get("reward_wait_ms", 20)
        if type(batch) is not int or batch < 1:
            raise UserError(f"wm.reward_batch is {shown(batch)}; write a number of trajectories >= 1")
        if type(wait) not in (int, float) or not 0 <= wait < math.inf:
            raise UserError(f"wm.reward_wait_ms is {shown(wait)}; write milliseconds >= 0")
        self.batcher = MicroBatcher(load_reward(wm.get("reward")), batch, wait / 1000)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score one trajectory.

        Args:
            data: a DataProto of its sequences; the last one is scored, as in verl's own managers. `responses` (n, T), padded on
                the right; `attention_mask` (n, P + T), 1 for real tokens.

        Returns:
            `reward_score`; and `reward_extra_info` with the environment's figures, `acc` (the score), `reward_batch_size` and
            the reward's figures.
        """
        row = data[-1:][0]
        fields = {key: _plain(value) for key, value in row.non_tensor_batch.items()}
        ids, length = row.batch["responses"], fields.get("response_len")
        if length is None:  # there is one with several sequences, where the mask is not aligned with the responses
            length = int(row.batch["attention_mask"][-len(ids) :].sum())
        text = await asyncio.to_thread(self.tokenizer.decode, ids[:length].tolist(), skip_special_tokens=True)
        target = _target((fields.get("reward_model") or {}).get("ground_truth"))
        score, figures = await self.batcher.score(text, target, _columns(fields))
        environment = (fields.get("tool_extra_fields") or {}).get(INFO) or {}
        return {"reward_score": score, "reward_extra_info": {**environment, "acc": score, **figures}}


_batchers: dict[str, MicroBatcher] = {}  # for compute_score, so that a process loads a model only once


async def compute_score(solution_str: str, ground_truth: Any, path: Any = None, kwargs: Any = None, **row: Any) -> dict:
    """verl's custom reward function; `path` and `kwargs` come from `reward_kwargs`.

    Returns:
        `score`, `acc` (the same), the environment's figures and the reward's.

    Raises:
        UserError: as from `load_reward`; or the row has no target, or lacks a column that the reward needs.
        RewardError: the reward raised, or returned no valid score.
    """
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
    """Return why a reward in verl's `RewardLoopWorker` is no longer called; None while it still is. Runs inside the worker."""
    manager = worker.reward_manager
    batchers = [manager.batcher] if isinstance(manager, BatchedRewardManager) else list(_batchers.values())
    return next((f"reward {b.reward.name}: {b.stopped}" for b in batchers if b.stopped is not None), None)


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    info = row.get("extra_info") or {}
    prompt = {"context": row["raw_prompt"]} if "raw_prompt" in row else {}  # as TRL's adapter has it
    return {**prompt, **info, **row, "data_source": row.get("data_source"), "extra_info": info}


def _target(truth: Any) -> str:
    if not isinstance(truth, str):
        state = "missing" if truth is None else f"of type {type(truth).__name__}"
        raise UserError(f"reward_model.ground_truth is {state}; write the text to compare with into the dataset")
    return truth


def _plain(value: Any) -> Any:
    """Return a value without numpy's or OmegaConf's wrapping."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
