"""Any reward in verl, by config alone: `(predictions: list[str], targets: list[str], **columns) -> list[float]`, a function or an
instance, sync or async, named by its dotted path.

In batches, for a reward that runs a model:

    reward.reward_manager.source=importlib reward.reward_manager.name=BatchedRewardManager reward.num_workers=1
    reward.reward_manager.module.path=pkg://wm_plugin.verl.rewards
    'wm.reward={path:"package.module:Name",kwargs:{threshold:0.2}}' wm.reward_batch=32 wm.reward_wait_ms=20

`reward.num_workers=1` matters: each worker has a reward of its own (verl's default is 8, so many copies of the model), and verl
sends every trajectory to a worker picked at random, so that batches among several come out small.
One trajectory a call, by verl's own manager `naive`:

    reward.custom_reward_function.path=pkg://wm_plugin.verl.rewards reward.custom_reward_function.name=compute_score
    '+reward.custom_reward_function.reward_kwargs={path:"package.module:Name",kwargs:{threshold:0.2}}'

The prediction is the text of the whole response, the target is `reward_model.ground_truth`, columns are the row's other fields
and those in its `extra_info`, where `wm_plugin.verl.data` puts what a dataset has of its own. A reward that fails is an error of
the trajectory, never a score of 0; verl logs it and leaves the trajectory's group out.
"""

import asyncio
import inspect
import json
import math
import numbers
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from wm_plugin.errors import UserError, nearest
from wm_plugin.registry import import_object
from wm_plugin.verl.agent_loop import INFO


class RewardError(RuntimeError):
    """A reward raised, or what it returned is no score. The message names the reward."""


def load_reward(spec: Any, *, field: str = "wm.reward") -> "LoadedReward":
    """The reward that a config names.

    Args:
        spec: a dotted path, or a mapping (of OmegaConf too) with `path` and the `kwargs` of its constructor.
        field: the setting, for messages.

    Raises:
        UserError: it is not set, does not exist, does not take these kwargs, or is no reward.
    """
    values = {"path": spec} if isinstance(spec, str) else _plain(spec)
    if not isinstance(values, Mapping) or not isinstance(values.get("path"), str):
        raise UserError(f"{field} is {values!r}; write package.module:Name, or {{path: ..., kwargs: {{...}}}}")
    for key in values.keys() - {"path", "kwargs"}:
        raise UserError(f"{field} has no field {key!r}{nearest(str(key), ('path', 'kwargs'))}")
    path, kwargs = values["path"], _plain(values.get("kwargs")) or {}
    found = import_object(path, field=field)
    if inspect.isclass(found):
        try:
            inspect.signature(found).bind(**kwargs)
        except TypeError as error:
            raise UserError(f"{field}: kwargs do not fit {path}: {error}") from None
        found = found(**kwargs)
    elif kwargs:
        raise UserError(f"{field}: {path} is no class, which kwargs are for; leave them out, or name a class")
    if not callable(found):
        raise UserError(f"{field}: {path} cannot be called; name a function or a class of rewards")
    return LoadedReward(path, found)


class LoadedReward:
    """A reward that takes whatever columns there are, whether or not the function inside does. `name` is for messages."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(positional) < 2 and all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            raise UserError(f"reward {name} takes {inspect.signature(function)}; predictions and targets come first")
        named = positional[2:] + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self._texts = {p.name for p in positional[:2]}
        self._takes = {p.name for p in named}
        self._needs = {p.name for p in named if p.default is p.empty}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def __call__(self, predictions: list[str], targets: list[str], /, **columns: list[Any]) -> Any:
        return self.function(predictions, targets, **self.accepted(columns))

    def accepted(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Those that the reward takes, never one by the name of its predictions or targets; a UserError if it needs another."""
        for missing in sorted(self._needs - columns.keys()):
            raise UserError(f"reward {self.name} needs the column {missing!r}{nearest(missing, columns)}")
        takes = columns.keys() - self._texts if self._takes_all else self._takes
        return {key: value for key, value in columns.items() if key in takes}

    def outcomes(self, result: Any, count: int) -> list[float | RewardError]:
        """What became of each of a call's `count` rows, by what the reward returned, or by the exception that it raised."""
        values = result.tolist() if isinstance(result, np.ndarray) else result
        if isinstance(values, BaseException):
            reason = f"raised {type(values).__name__}: {values}"
        elif not isinstance(values, list | tuple):
            reason = f"returned {type(values).__name__}; write list[float], a score for each prediction"
        elif len(values) != count:
            reason = f"returned {len(values)} scores for {count} predictions; write one for each"
        else:
            return [self._outcome(value) for value in values]
        return [self._error(reason, values) for _ in range(count)]  # one each: an error collects tracebacks

    def _outcome(self, value: Any) -> float | RewardError:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        if math.isfinite(number):
            return number
        shown = value if value is None or isinstance(value, numbers.Real) else f"a {type(value).__name__}"
        return self._error(
            f"returned {shown} for a row; verl needs a finite float for every trajectory. Where the reward is not applicable "
            "(None, NaN), let it return a number, or leave such rows out of the dataset"
        )

    def _error(self, reason: str, cause: Any = None) -> RewardError:
        error = RewardError(f"reward {self.name} {reason}")
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error


@dataclass(frozen=True, eq=False)
class _Row:
    """A trajectory that waits for its score."""

    prediction: str
    target: str
    columns: dict[str, Any]
    waiter: "asyncio.Future[tuple[float | RewardError, int]]"


class MicroBatcher:
    """Brings trajectories that are scored at the same time into one call of the reward. One call runs at a time, in a thread of
    its own; what it returns to be awaited, on the event loop.

    Args:
        batch: trajectories a call, at most.
        wait: seconds that the first one waits for others, at most. What came while a call ran does not wait.
    """

    def __init__(self, reward: LoadedReward, batch: int = 1, wait: float = 0.0) -> None:
        self.reward, self.batch, self.wait = reward, batch, wait
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[_Row] = asyncio.Queue()
        self._flusher: asyncio.Task[None] | None = None

    async def score(self, prediction: str, target: str, columns: Mapping[str, Any]) -> tuple[float, int]:
        """The score of one trajectory, and how many were scored in the same call.

        Raises:
            UserError: a column is missing that the reward needs.
            RewardError: the reward raised (which is the cause), or its result is no score for this one.
        """
        loop = asyncio.get_running_loop()
        row = _Row(prediction, target, self.reward.accepted(columns), loop.create_future())
        if loop is not self._loop:  # a queue belongs to the loop that first waited for it
            self._loop, self._queue, self._flusher = loop, asyncio.Queue(), None
        self._queue.put_nowait(row)
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        outcome, size = await row.waiter
        if isinstance(outcome, RewardError):
            raise outcome
        return outcome, size

    async def _flush(self) -> None:
        """Ends when nothing waits any more, so that no task outlives the loop."""
        while not self._queue.empty():
            # Rows with other columns go into another call: what a row is given must not depend on its neighbours.
            groups: dict[frozenset[str], list[_Row]] = {}
            for row in await self._gather():
                if not row.waiter.done():  # else the caller gave up
                    groups.setdefault(frozenset(row.columns), []).append(row)
            for rows in groups.values():
                try:
                    outcomes = self.reward.outcomes(await self._call(rows), len(rows))
                except Exception as error:  # anything that left a waiter without an answer would hang the run
                    outcomes = self.reward.outcomes(error, len(rows))
                for row, outcome in zip(rows, outcomes, strict=True):
                    if not row.waiter.done():
                        row.waiter.set_result((outcome, len(rows)))

    async def _gather(self) -> list[_Row]:
        clock = asyncio.get_running_loop().time
        rows, end = [self._queue.get_nowait()], clock() + self.wait
        while len(rows) < self.batch:
            if not self._queue.empty():  # not left to wait_for: with no time left it gives up before it looks
                rows.append(self._queue.get_nowait())
                continue
            try:
                rows.append(await asyncio.wait_for(self._queue.get(), max(0.0, end - clock())))
            except TimeoutError:
                break
        return rows

    async def _call(self, rows: list[_Row]) -> Any:
        """What the reward returns, or the exception that it raises."""
        predictions, targets = [row.prediction for row in rows], [row.target for row in rows]
        columns = {key: [row.columns[key] for row in rows] for key in rows[0].columns}

        def call() -> Any:
            try:
                return self.reward(predictions, targets, **columns)
            except BaseException as error:  # a StopIteration would not reach the loop, a SystemExit end the worker
                return error

        result = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        if inspect.isawaitable(result):
            [result] = await asyncio.gather(result, return_exceptions=True)
        return result


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
            `reward_score`, and `reward_extra_info`: the environment's figures, `acc` (the score) and `reward_batch_size`.
        """
        row = data[-1:][0]
        fields = {key: _plain(value) for key, value in row.non_tensor_batch.items()}
        ids, length = row.batch["responses"], fields.get("response_len")
        if length is None:  # with several sequences the mask is not aligned with the responses, but there is a length
            length = int(row.batch["attention_mask"][-len(ids) :].sum())
        text = await asyncio.to_thread(self.tokenizer.decode, ids[:length].tolist(), skip_special_tokens=True)
        target = _target((fields.get("reward_model") or {}).get("ground_truth"))
        score, size = await self.batcher.score(text, target, _columns(fields))
        figures = (fields.get("tool_extra_fields") or {}).get(INFO) or {}
        return {"reward_score": score, "reward_extra_info": {**figures, "acc": score, "reward_batch_size": size}}


_batchers: dict[str, MicroBatcher] = {}  # of compute_score: a model is loaded once a process


async def compute_score(solution_str: str, ground_truth: Any, path: Any = None, kwargs: Any = None, **row: Any) -> dict:
    """verl's custom reward function, by `reward_kwargs`. Gives `score`, `acc` (the same) and the environment's figures."""
    where = "reward.custom_reward_function.reward_kwargs"
    for name in row.keys() - {"data_source", "extra_info", "reward_router_address", "reward_model_tokenizer"}:
        raise UserError(f"{where} has no field {name!r}; arguments of the reward itself go under kwargs")
    key = json.dumps([path, _plain(kwargs)], sort_keys=True, default=repr)
    if key not in _batchers:
        _batchers[key] = MicroBatcher(load_reward({"path": path, "kwargs": kwargs}, field=where))
    columns = _columns({name: _plain(value) for name, value in row.items()})
    score, _ = await _batchers[key].score(solution_str, _target(_plain(ground_truth)), columns)
    return {**(columns.get(INFO) or {}), "score": score, "acc": score}


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
