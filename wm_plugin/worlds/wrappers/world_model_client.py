"""The client of a world model, for all episodes of a process: a server, or a model in this process.

Everything runs in the background event loop. At temperature 0 an answer is kept, and equal questions that are asked at the same
time, as by a group of episodes of one task, are one request.
"""

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wm_plugin.client.answers import Answer, Conversation
from wm_plugin.client.cache import ReplyCache
from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Completion
from wm_plugin.tokens.harmless import control_tokens
from wm_plugin.tokens.message import Message
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

logger = logging.getLogger(__name__)

_MAKING = threading.Lock()  # two threads would each load the model
_KEPT = 20_000  # answers in memory
_RETRIES = 100_000  # `patience` ends them
_LONGEST_WAIT = 5.0  # seconds between two attempts, so that a server that is back is soon found


@dataclass(frozen=True)
class Reply:
    """An answer, the tokens of its request as the server counts them, and whether there was a request at all."""

    answer: Answer
    tokens: int = 0
    requests: int = 1


class WorldModel:
    """The world model of a config. One instance serves all episodes of a process; `ask` is for the background loop.

    Raises:
        UserError: the model or a setting does not fit.
        MissingExtraError: what asks it is not installed.
    """

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self._backend: _Served | _Local = _Served(config) if config.url is not None else _Local(config)
        self.control_tokens = tuple(sorted({*config.control_tokens, *self._backend.control_tokens}))
        self._disk = ReplyCache(config.cache) if isinstance(config.cache, str) else None
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Reply]] = {}  # questions without an answer yet

    @property
    def origin(self) -> dict[str, str]:
        """Which model it is: `model` and `server` behind a server, else `model` and a digest of its `weights`."""
        return self._backend.origin

    async def ask(self, question: Conversation, attempt: int = 0, sample: int = 0) -> Reply:
        """Answer a question. Only a server that refuses the key, the address or the model raises.

        Args:
            attempt: 0, or how often it was asked before: then the answer is another one.
            sample: which of several independent answers; at temperature 0 all are the same.
        """
        name = _digest(json.dumps([dict(message) for message in question]))
        seed = seed_of(f"{self.config.seed}/{attempt}/{name}" + (f"/{sample}" if sample else ""))
        if attempt:
            return await self._backend.answer(question, self.config.repair_temperature, seed)
        if self.config.temperature or not self.config.cache:
            return await self._backend.answer(question, self.config.temperature, seed)
        key = self._backend.key(question)
        if (kept := self._find(key)) is not None:
            return Reply(kept, requests=0)
        if key in self._asked:
            # another episode may be cancelled, and its question goes on for this one
            return Reply((await asyncio.shield(self._asked[key])).answer, requests=0)
        task = self._asked[key] = asyncio.ensure_future(self._backend.answer(question, 0.0, 0))
        task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def _find(self, key: str) -> Answer | None:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        text = self._disk.get([key]).get(key) if self._disk is not None else None
        return None if text is None else Answer(text)

    def _keep(self, key: str, done: "asyncio.Task[Reply]") -> None:
        del self._asked[key]
        if done.cancelled() or done.exception() is not None or done.result().answer.failure:
            return
        answer = self._kept[key] = done.result().answer
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        if self._disk is not None and not answer.cut:
            self._disk.put({key: answer.text})


def world_model(config: SimulationConfig) -> WorldModel:
    """Return the world model of a config in this process; episodes in several threads share it."""
    with _MAKING:
        return _world_model(config, os.getpid())


@lru_cache(maxsize=8)
def _world_model(config: SimulationConfig, process: int) -> WorldModel:  # noqa: ARG001 - a fork has its own
    return WorldModel(config)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _Served:
    control_tokens: tuple[str, ...] = ()

    def __init__(self, config: SimulationConfig) -> None:
        self._patience = config.patience
        self._server = config.server(max_retries=_RETRIES, longest_wait=_LONGEST_WAIT)
        self.origin = {"model": self._server.model, "server": self._server.base_url}

    def key(self, question: Conversation) -> str:
        return _digest(json.dumps(self._server.body(question, 0), sort_keys=True))

    async def answer(self, question: Conversation, temperature: float, seed: int) -> Reply:
        own: dict[str, Any] = {}
        if temperature != self._server.parameters.get("temperature"):
            own = {"fields": {"temperature": temperature}}
        if temperature:
            own["seeds"] = [seed]
        try:
            async with asyncio.timeout(self._patience):
                (found,) = await self._server.complete_async([question], **own)
        except TimeoutError:
            return Reply(Answer("", failure="timeout"))
        if isinstance(found, Completion):
            return Reply(Answer(found.text, found.cut), found.tokens)
        return Reply(Answer("", failure=found.kind))


class _Local:
    """A model of transformers. What is asked while it answers is its next batch."""

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._first = self._predictor(config.model, None, config.temperature)
        self._predictors = {config.temperature: self._first}
        self.control_tokens = control_tokens(self._first.tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wm-world-model")
        self._waiting: list[tuple[Conversation, float, int, asyncio.Future[Reply]]] = []
        self._work: asyncio.Task[None] | None = None

    def _predictor(self, model: Any, tokenizer: Any, temperature: float) -> LocalPredictor:
        config = self._config
        return LocalPredictor(
            model, tokenizer, temperature=temperature, max_new_tokens=config.max_tokens, batch_size=config.concurrency
        )

    @property
    def origin(self) -> dict[str, str]:
        return {"model": self._config.model, "weights": str(self._first.settings["weights"])}

    def key(self, question: Conversation) -> str:
        return _digest(json.dumps([self._first.settings, [dict(one) for one in question], 0]))

    async def answer(self, question: Conversation, temperature: float, seed: int) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, temperature, seed, future))
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._batches())  # whoever asked may be cancelled
        return await future

    async def _batches(self) -> None:
        while True:
            await asyncio.sleep(0.001)  # what is asked at the same time
            if not self._waiting:
                return
            temperature, seed = self._waiting[0][1:3]
            batch = [one for one in self._waiting if one[1] == temperature and (one[2] == seed or not temperature)]
            batch = batch[: self._config.concurrency]
            taken = {id(one) for one in batch}
            self._waiting = [one for one in self._waiting if id(one) not in taken]
            try:
                questions = [list(question) for question, *_ in batch]
                answers = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._answers, questions, temperature, seed
                )
            except Exception as error:  # a lack of memory, a question that is too long
                logger.warning("the world model failed (%s: %.200s)", type(error).__name__, error)
                answers = [Answer("", failure="model error")] * len(batch)
            for (*_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(Reply(answer))

    def _answers(self, questions: list[list[Message]], temperature: float, seed: int) -> list[Answer]:
        if temperature not in self._predictors:
            self._predictors[temperature] = self._predictor(self._first.model, self._first.tokenizer, temperature)
        return [Answer(text, cut) for text, cut in self._predictors[temperature].completions(questions, seed=seed)]
