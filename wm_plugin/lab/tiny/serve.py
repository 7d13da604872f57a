"""Answers of a transformers model for `serving`, as the world models of the tiny recipes give them.

Questions that arrive while the model answers form its next batch.
"""

import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.lab.tiny.serving import Said

_GATHER = 0.002  # seconds that a batch's first question waits for others


class _Question(NamedTuple):
    messages: list[dict[str, Any]]
    temperature: float
    seed: int
    max_tokens: int
    answer: "Future[Said]"

    @property
    def group(self) -> tuple[float, int, int]:
        """What all questions in a batch share."""
        return self.temperature, self.seed if self.temperature else 0, self.max_tokens


class Batches:
    """Answers the questions of many threads in batches.

    Args:
        model: its folder.
        batch: the largest batch.
        max_tokens: the longest answer, in tokens.
    """

    def __init__(self, model: str | Path, *, batch: int = 64, max_tokens: int = 1024) -> None:
        self._first = LocalPredictor(model, temperature=0.0, max_new_tokens=max_tokens, batch_size=batch)
        self._batch, self._max_tokens = batch, max_tokens
        self._waiting: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="wm-tiny-serve", daemon=True).start()

    def __call__(self, body: dict[str, Any]) -> Said:
        """Answer a request's body. Raises ValueError if it does not ask for a completion."""
        messages = [{"role": str(one["role"]), "content": str(one["content"])} for one in body["messages"]]
        temperature = float(1.0 if body.get("temperature") is None else body["temperature"])
        if not messages or not 0 <= temperature <= 100:
            raise ValueError("it has no messages, or no temperature from 0 to 100")
        most = body.get("max_completion_tokens") or body.get("max_tokens") or self._max_tokens
        limit = max(1, min(int(most), self._max_tokens))
        question = _Question(messages, temperature, seed_of(str(body.get("seed"))), limit, Future())
        self._waiting.put(question)
        return question.answer.result()

    def _run(self) -> None:
        left: list[_Question] = []
        while True:
            if not left:
                left.append(self._waiting.get())
                threading.Event().wait(_GATHER)
            while not self._waiting.empty():
                left.append(self._waiting.get())
            group = left[0].group
            # sampled questions run alone: in a batch a seed's draws would depend on the other questions
            at_once = 1 if group[0] else self._batch
            chosen = [one for one in left if one.group == group][:at_once]
            left = [one for one in left if one not in chosen]
            try:
                for question, said in zip(chosen, self._answer(chosen), strict=True):
                    question.answer.set_result(said)
            except Exception as error:  # the model failed; the server continues
                for question in chosen:
                    if not question.answer.done():
                        question.answer.set_exception(ValueError(f"{type(error).__name__}: {str(error)[:200]}"))

    def _answer(self, chosen: list[_Question]) -> list[Said]:
        first = chosen[0]
        predictor = LocalPredictor(
            self._first.model,
            self._first.tokenizer,
            temperature=first.temperature,
            max_new_tokens=first.max_tokens,
            batch_size=self._batch,
        )
        conversations: list[Any] = [one.messages for one in chosen]
        found = predictor.completions(conversations, seed=first.seed)
        count = [
            (len(predictor._prompt_ids(messages)), len(predictor.tokenizer(text).input_ids))
            for messages, (text, _) in zip(conversations, found, strict=True)
        ]
        return [Said(text, cut, tokens) for (text, cut), tokens in zip(found, count, strict=True)]
