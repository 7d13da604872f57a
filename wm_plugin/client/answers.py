"""A model's answers to conversations, each stored in a file as it arrives, so that a killed run asks nothing twice.

`data.predictions` stores k outputs of transitions in shards; this stores one answer of any conversation, and how it ended.
"""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wm_plugin.client.predict import LocalPredictor, seed_of
from wm_plugin.client.server import Completion, Failure, Server
from wm_plugin.errors import UserError
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import loads

Conversation = Sequence[Message]
_BEGINNING = b'{"key": "'  # of a line
_Store = tuple[dict[str, "Answer"], Callable[[str, "Answer"], None]]  # the stored answers by key, and what adds one


@dataclass(frozen=True)
class Answer:
    """A model's answer.

    Attributes:
        text: "" without an answer.
        cut: whether it ended at the limit of new tokens.
        failure: why there is no answer: one of `server.KINDS`; "" if there is one.
    """

    text: str
    cut: bool = False
    failure: str = ""

    @property
    def trouble(self) -> str:
        """Return `failure`, "cut", "empty", or "" for a whole answer."""
        return self.failure or ("cut" if self.cut else "" if self.text.strip() else "empty")


class Model(Protocol):
    """Anything that answers conversations whose last message is a user's."""

    batched: bool  # whether an answer depends a little on the others of its batch

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that an answer depends on except its conversation and seed, as JSON values; `temperature` is one."""
        ...

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        """Answer every conversation, and call `keep` with its index and its answer as soon as it arrives."""
        ...


class ServerModel:
    """A model behind an OpenAI-compatible server, which gets as many conversations at once as its `concurrency` allows."""

    batched = False

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def settings(self) -> dict[str, Any]:
        return self.server.settings

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        def done(index: int, answer: Completion | Failure) -> None:
            if isinstance(answer, Failure):
                keep(index, Answer("", failure=answer.kind))
            else:
                keep(index, Answer(answer.text, answer.cut))

        self.server.complete(conversations, seeds=seeds, each=done)


class LocalModel:
    """A model of transformers in this process. It answers in batches of the predictor's `batch_size`."""

    batched = True

    def __init__(self, predictor: LocalPredictor) -> None:
        self.predictor = predictor

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.predictor.settings, "batch_size": self.predictor.batch_size}

    def ask(
        self, conversations: Sequence[Conversation], seeds: Sequence[int], keep: Callable[[int, Answer], None]
    ) -> None:
        size = self.predictor.batch_size
        for start in range(0, len(conversations), size):
            batch = [list(conversation) for conversation in conversations[start : start + size]]
            for place, (text, cut) in enumerate(self.predictor.completions(batch, seed=seeds[start])):
                keep(start + place, Answer(text, cut))


class Answers:
    """A model whose answers are stored in a file: the same question with the same seed and settings is not asked again.

    Failed calls are not stored; the next run asks them again. One run at a time writes to a file. `with answers:` reads it once
    for many calls, and remembers answers without a file.

    Attributes:
        asked: how many answers the model gave, over all calls, without the stored ones.
    """

    def __init__(self, model: Model, path: str | Path | None = None) -> None:
        self.model, self.path, self.asked = model, None if path is None else Path(path), 0
        self._held = ExitStack()
        self._store: _Store | None = None

    def __enter__(self) -> "Answers":
        self._store = self._held.enter_context(_kept(self.path))
        return self

    def __exit__(self, *error: object) -> None:
        self._store = None
        self._held.close()

    @property
    def settings(self) -> dict[str, Any]:
        return self.model.settings

    def __call__(
        self,
        conversations: Iterable[Conversation],
        *,
        seed: int = 0,
        at_once: int = 256,
        seeds: Sequence[int] | None = None,
    ) -> list[Answer]:
        """Answer each conversation, in order.

        At temperature 0 there is no seed, and equal conversations are asked once. Batches are the same whatever is stored,
        so that a killed run ends with the same answers as any other.

        Args:
            seed: determines each conversation's seed, with its place.
            at_once: conversations that are given to the model in one call.
            seeds: a seed of each conversation, instead of `seed`.
        """
        asked = list(conversations)
        sampled = self.model.settings.get("temperature") != 0
        seeds = [seed_of(f"{seed}/{place}") for place in range(len(asked))] if seeds is None else list(seeds)
        seeds = seeds if sampled else [0] * len(asked)
        answers: list[Answer] = []
        with nullcontext(self._store) if self._store else _kept(self.path) as (known, keep):
            settings = self.model.settings
            for start in range(0, len(asked), at_once):
                chunk = slice(start, start + at_once)
                answers += self._chunk(asked[chunk], seeds[chunk], settings, known, keep)
        return answers

    def _chunk(
        self,
        conversations: Sequence[Conversation],
        seeds: Sequence[int],
        settings: dict[str, Any],
        known: dict[str, Answer],
        keep: Callable[[str, Answer], None],
    ) -> list[Answer]:
        keys = [_key(settings, messages, seed) for messages, seed in zip(conversations, seeds, strict=True)]
        places = list({key: place for place, key in enumerate(keys) if key not in known}.values())
        if places and self.model.batched:
            places = list(range(len(keys)))
        fresh: dict[str, Answer] = {}

        def done(index: int, answer: Answer) -> None:
            key = keys[places[index]]
            if key in known:
                return
            self.asked += 1
            fresh[key] = answer
            if not answer.failure:
                known[key] = answer
                keep(key, answer)

        if places:
            self.model.ask([conversations[place] for place in places], [seeds[place] for place in places], done)
        return [known[key] if key in known else fresh[key] for key in keys]


def ask_again(
    answers: Answers,
    numbers: Iterable[int],
    question: Callable[[int, int], Conversation],
    settle: Callable[[int, Answer], bool],
    *,
    tries: int,
    seed: int = 0,
    at_once: int = 256,
) -> None:
    """Ask about numbered questions, and again about those that an answer has not settled.

    An answer's seed depends on its number and on how often it was asked, not on the others.

    Args:
        question: returns the question about a number, at an attempt from 0 on.
        settle: takes the answer about a number, and returns whether no other is needed.
        tries: maximum number of attempts.
    """
    left = list(numbers)
    for attempt in range(tries):
        unsettled = []
        for start in range(0, len(left), at_once):
            chunk = left[start : start + at_once]
            seeds = [seed_of(f"{tries * seed + attempt}/{number}") for number in chunk]
            for number, answer in zip(
                chunk, answers([question(number, attempt) for number in chunk], seeds=seeds), strict=True
            ):
                if not settle(number, answer):
                    unsettled.append(number)
        left = unsettled


def _key(settings: dict[str, Any], messages: Conversation, seed: int) -> str:
    text = json.dumps([settings, [dict(message) for message in messages], seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextmanager
def _kept(path: Path | None) -> Iterator[_Store]:
    """Yield a file's answers and a function that adds one."""
    if path is None:
        yield {}, lambda *_: None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{path}: another run writes to it; wait for its end, or name another folder") from None
        known, end = _read(path)
        file.truncate(end)  # drop a line that a kill cut

        def keep(key: str, answer: Answer) -> None:
            row = {"key": key, "text": answer.text, "cut": answer.cut}
            file.write(json.dumps(row).encode() + b"\n")  # ASCII: a text may hold half a surrogate pair
            file.flush()

        yield known, keep


def _read(path: Path) -> tuple[dict[str, Answer], int]:
    """Return the answers by key, and the position after the last whole line."""
    known: dict[str, Answer] = {}
    end = 0
    with path.open("rb") as file:
        for line in file:
            # A kill may cut the last line, and a crash of the machine may leave zeros behind it.
            if not line.endswith(b"\n") and _BEGINNING.startswith(line.rstrip(b"\0")[: len(_BEGINNING)]):
                break
            try:
                row = loads(line)
                key, text, cut = row["key"], row["text"], row["cut"]
            except (ValueError, KeyError, TypeError):
                key = None
            if not (isinstance(key, str) and isinstance(text, str) and isinstance(cut, bool)):
                raise UserError(f"{path}: does not hold answers; name another folder")
            known[key] = Answer(text, cut)
            end += len(line)
    return known, end
