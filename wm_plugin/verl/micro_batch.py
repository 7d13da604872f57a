"""A reward as verl's managers call it: whatever columns there are, and trajectories in batches that finish one by one."""

import asyncio
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from wm_plugin.errors import UserError, nearest

FIGURES = "wm/"  # in front of a reward's figures, in reward_extra_info and in metrics


class RewardError(RuntimeError):
    """A reward raised, or what it returned is no score. The message names the reward."""


class LoadedReward:
    """A reward that takes whatever columns there are, whether or not the function inside does. `name` is for messages.

    Attributes:
        call_async: the reward's own way to be called inside an event loop, None if it has none.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        self.call_async = getattr(function, "call_async", None)
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

    @property
    def figures(self) -> dict[str, float]:
        """What the reward says of its last call, by the names that they have in metrics."""
        short = self.name.rpartition(":")[2].rpartition(".")[2]
        figures = getattr(self.function, "figures", None) or {}
        return {f"{FIGURES}{short}/{name}": float(value) for name, value in figures.items()}

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
    waiter: "asyncio.Future[tuple[float | RewardError, dict[str, float]]]"


class MicroBatcher:
    """Brings trajectories that are scored at the same time into one call of the reward. One call runs at a time, in a thread of
    its own; what it returns to be awaited, on the event loop.

    Args:
        batch: trajectories a call, at most.
        wait: seconds that the first one waits for others, at most. What came while a call ran does not wait.

    Attributes:
        stopped: the line of a `UserError` that the reward raised. It is not called again.
    """

    def __init__(self, reward: LoadedReward, batch: int = 1, wait: float = 0.0) -> None:
        self.reward, self.batch, self.wait = reward, batch, wait
        self.stopped: str | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[_Row] = asyncio.Queue()
        self._flusher: asyncio.Task[None] | None = None

    async def score(self, prediction: str, target: str, columns: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """The score of one trajectory; figures of the call that it was in, and in `reward_batch_size` how many were.

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
        outcome, figures = await row.waiter
        if isinstance(outcome, RewardError):
            raise outcome
        return outcome, figures

    async def _flush(self) -> None:
        """Ends when nothing waits any more, so that no task outlives the loop."""
        while not self._queue.empty():
            # Rows with other columns go into another call: what a row is given must not depend on its neighbours.
            groups: dict[frozenset[str], list[_Row]] = {}
            for row in await self._gather():
                if not row.waiter.done():  # else the caller gave up
                    groups.setdefault(frozenset(row.columns), []).append(row)
            for rows in groups.values():
                figures: dict[str, float] = {}
                try:
                    result = await self._call(rows)
                    figures = {**self.reward.figures, "reward_batch_size": len(rows)}
                    outcomes = self.reward.outcomes(result, len(rows))
                except Exception as error:  # anything that left a waiter without an answer would hang the run
                    outcomes = self.reward.outcomes(error, len(rows))
                for row, outcome in zip(rows, outcomes, strict=True):
                    if not row.waiter.done():
                        row.waiter.set_result((outcome, figures))

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
        if self.stopped is not None:
            return UserError(self.stopped)
        predictions, targets = [row.prediction for row in rows], [row.target for row in rows]
        columns = {key: [row.columns[key] for row in rows] for key in rows[0].columns}

        def call() -> Any:
            try:
                return self.reward(predictions, targets, **columns)
            except BaseException as error:  # a StopIteration would not reach the loop, a SystemExit end the worker
                return error

        if self.reward.call_async is not None:
            result = self.reward.call_async(predictions, targets, **columns)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        if inspect.isawaitable(result):
            [result] = await asyncio.gather(result, return_exceptions=True)
        if isinstance(result, UserError):
            self.stopped = str(result)
        return result
