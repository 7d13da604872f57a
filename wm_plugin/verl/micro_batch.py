"""Micro-batching: trajectories that verl scores one by one are brought together into calls of a reward."""

import asyncio
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.hosted import HostedReward, RewardError


@dataclass(frozen=True, eq=False)
class _Row:
    """A trajectory that waits for its score."""

    prediction: str
    target: str
    columns: dict[str, Any]
    waiter: "asyncio.Future[tuple[Any, dict[str, float]]]"  # a score or a RewardError, and figures


class MicroBatcher:
    """Collects trajectories that arrive at about the same time into one call of the reward.

    Only one call runs at a time, in a separate thread; a coroutine that it returns runs on the event loop.

    Args:
        reward: the reward.
        batch: maximum number of trajectories per call.
        wait: maximum number of seconds that the first one waits for others. Trajectories that arrived during a call do not wait.

    Attributes:
        stopped: the message of a `UserError` that the reward raised; it is not called again. None before that.
    """

    def __init__(self, reward: HostedReward, batch: int = 1, wait: float = 0.0) -> None:
        self.reward, self.batch, self.wait = reward, batch, wait
        self.stopped: str | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[_Row] = asyncio.Queue()
        self._flusher: asyncio.Task[None] | None = None

    async def score(self, prediction: str, target: str, columns: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        """Return a trajectory's score and its call's figures, with `reward_batch_size`, the call's number of trajectories.

        Args:
            prediction: the model's output.
            target: the real observation.
            columns: the row's other fields.

        Raises:
            UserError: the reward needs a column that is missing.
            RewardError: the reward raised (the error is the cause), or returned no valid score for this trajectory.
        """
        loop = asyncio.get_running_loop()
        row = _Row(prediction, target, self.reward.columns(columns), loop.create_future())
        if loop is not self._loop:  # a queue belongs to the loop that first waited on it
            self._loop, self._queue, self._flusher = loop, asyncio.Queue(), None
        self._queue.put_nowait(row)
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        outcome, figures = await row.waiter
        if isinstance(outcome, RewardError):
            raise outcome
        return outcome, figures

    async def _flush(self) -> None:
        """Score what is in the queue. Ends when the queue is empty, so that no task outlives the loop."""
        while not self._queue.empty():
            # Rows with different columns go into different calls, so that no row depends on its neighbours.
            groups: dict[frozenset[str], list[_Row]] = {}
            for row in await self._gather():
                if not row.waiter.done():  # otherwise the caller gave up
                    groups.setdefault(frozenset(row.columns), []).append(row)
            for rows in groups.values():
                figures: dict[str, float] = {}
                try:
                    result = await self._call(rows)
                    figures = {**self.reward.figures, "reward_batch_size": len(rows)}
                    outcomes = self.reward.outcomes(result, len(rows))
                except Exception as error:  # a waiter without an answer would hang the run
                    outcomes = self.reward.outcomes(error, len(rows))
                for row, outcome in zip(rows, outcomes, strict=True):
                    if not row.waiter.done():
                        row.waiter.set_result((outcome, figures))

    async def _gather(self) -> list[_Row]:
        clock = asyncio.get_running_loop().time
        rows, end = [self._queue.get_nowait()], clock() + self.wait
        while len(rows) < self.batch:
            if not self._queue.empty():  # wait_for with no time left would not look
                rows.append(self._queue.get_nowait())
                continue
            try:
                rows.append(await asyncio.wait_for(self._queue.get(), max(0.0, end - clock())))
            except TimeoutError:
                break
        return rows

    async def _call(self, rows: list[_Row]) -> Any:
        """Return the reward's result, or the exception that it raised."""
        if self.stopped is not None:
            return UserError(self.stopped)
        predictions, targets = [row.prediction for row in rows], [row.target for row in rows]
        columns = {key: [row.columns[key] for row in rows] for key in rows[0].columns}

        def call() -> Any:
            try:
                return self.reward(predictions, targets, **columns)
            except BaseException as error:  # StopIteration cannot pass a future, SystemExit would end the worker
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
