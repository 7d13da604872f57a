"""A language model as the judge of predictions: what all judges share, and RWML's two baselines (section 3.4, table A8).

Judges can be talked round, and lose to plain comparisons in RWML's table 4. What is done against it here: a judge sees the
prediction only, never the reasoning; texts are fenced in (`delimit`); only the judge's own last verdict counts (`verdict`).
"""

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wm_plugin.errors import UserError, nearest
from wm_plugin.rewards import prompts
from wm_plugin.rewards.base import check_texts, mean
from wm_plugin.rewards.cache import ReplyCache
from wm_plugin.rewards.delimit import fenced
from wm_plugin.rewards.extract import check_tag, extract
from wm_plugin.rewards.verdict import TAG, fields, number
from wm_plugin.runtime.server import KINDS, Completion, Failure, Server
from wm_plugin.tokens.message import Message

_WINDOW = 200  # judged predictions that the share of failures is over
_ENOUGH = 20  # of them, before it can stop a run
_CLOSING = f"The data ends here. Judge it as you were told, and end with your verdict in <{TAG}>."
FAILURES = (*KINDS, "no verdict")


@dataclass(frozen=True)
class Row:
    """A prediction to be judged. `target` is what the environment really said; `columns` holds this row's other values."""

    prediction: str
    target: str
    columns: dict[str, Any]


Notes = dict[str, list[float]]  # what is averaged over a call's rows, for the figures


@dataclass
class _Batch:
    """One call: its rewards so far, the rows by what is asked about them, and the replies. The same question is asked once."""

    rewards: list[float]
    notes: Notes
    rows: dict[str, list[tuple[int, Row]]] = field(default_factory=dict)
    replies: dict[str, Completion | Failure] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # the cache's, of questions that it has no reply to
    failures: Counter[str] = field(default_factory=Counter)


class JudgedReward(ABC):
    """A reward that a model behind a server gives. Call it with predictions and targets, as any reward.

    Columns, all optional: `action` (text) and `context` (text, or messages) are shown to the judge.

    No prediction is 0 without a call. A call that fails, or a reply without a verdict, is `failed`, and counted by kind.

    Args:
        server: a `Server`, or its arguments as a mapping: {"base_url": ..., "model": ...}.
        prompt: one of ours by name, or a Markdown file by path.
        tag: predictions are whole outputs, and the prediction is what `extract` finds in them, as in the text rewards. None:
            predictions are given as they are; outputs with reasoning must not be.
        cache: a `ReplyCache`, or the path of one; None asks every time. Only replies with a verdict are kept.
        max_failure_share: of the last 200 judged predictions, from 20 on; above it the run stops. 1.0 never does.
        failed: the reward where the judge fails; NaN leaves the row out of TRL's mean.
        max_chars: of each text that the judge is shown; of `context` it is the end, of the others the beginning.

    Attributes:
        figures: of the last call, always with the same keys. `no_prediction`, `judged` (by a judge or the cache) and
            `neutralised` (something had to be) are shares of rows; `failure_share` and `failures/<kind>` of the judged rows;
            `cache_hit_share` of the questions; `server/...` are the server's, since it was made.

    Raises:
        UserError: a value that cannot be; from a call, that too many judgements failed.
    """

    default_prompt: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ("action", "context")  # columns; others are not looked at
    measures: ClassVar[tuple[str, ...]] = ()  # more figures: means of what the notes hold

    def __init__(
        self,
        server: Server | Mapping[str, Any],
        *,
        prompt: str | None = None,
        tag: str | None = None,
        cache: ReplyCache | str | Path | None = None,
        max_failure_share: float = 0.5,
        failed: float = 0.0,
        max_chars: int = 20_000,
    ) -> None:
        check_tag(tag)
        if not 0 <= max_failure_share <= 1:
            raise UserError(f"max_failure_share is {max_failure_share}; write a share between 0 and 1")
        if max_chars < 1:
            raise UserError(f"max_chars is {max_chars}; write a number >= 1")
        self.server = server if isinstance(server, Server) else _server(server)
        self.prompt, self._about_data = prompts.load(prompt or self.default_prompt), prompts.ours("data")
        self.tag = tag
        self.cache = ReplyCache(cache) if isinstance(cache, str | Path) else cache
        self.max_failure_share, self.failed, self.max_chars = max_failure_share, failed, max_chars
        self.figures: dict[str, float] = {}
        self._recent: deque[str] = deque(maxlen=_WINDOW)  # a kind of failure, or ""

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        batch, rows = self._begin(predictions, targets, columns)
        return self._end(batch, self.server.complete(self._missing(batch, rows)))

    async def call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        """The same for code inside an event loop, which goes on meanwhile."""
        batch, rows = self._begin(predictions, targets, columns)
        return self._end(batch, await self.server.complete_async(self._missing(batch, rows)))

    @abstractmethod
    def _texts(self, row: Row) -> dict[str, str]:
        """What the judge compares, by the names that the prompt uses."""

    @abstractmethod
    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:
        """The reward that a reply gives, None without a verdict."""

    def _decided(self, row: Row, notes: Notes) -> float | None:  # noqa: ARG002 - others look
        """The reward of a row that needs no judge."""
        return None

    def _system(self, row: Row) -> str:  # noqa: ARG002 - others depend on it
        return self.prompt

    def _begin(
        self, predictions: Sequence[str | None], targets: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[_Batch, list[tuple[int, Row]]]:
        """The rewards that need no judge, and the rows that do."""
        check_texts(predictions, targets)
        used = {name: columns[name] for name in self.uses if columns.get(name) is not None}
        for name, values in used.items():
            if len(values) != len(targets):
                raise UserError(f"there are {len(targets)} targets and {len(values)} of {name}; write one for each")
        names = ("no_prediction", "judged", "neutralised", *self.measures)
        batch = _Batch([0.0] * len(targets), {name: [] for name in names})
        rows = []
        for index, (output, target) in enumerate(zip(predictions, targets, strict=True)):
            prediction = extract(output, self.tag).prediction if output and self.tag is not None else output
            batch.notes["no_prediction"].append(prediction is None)
            if prediction is None:
                continue
            row = Row(prediction, target, {name: values[index] for name, values in used.items()})
            known = self._decided(row, batch.notes)
            batch.notes["judged"].append(known is None)
            if known is None:
                rows.append((index, row))
            else:
                batch.rewards[index] = known
        return batch, rows

    def _missing(self, batch: _Batch, rows: Sequence[tuple[int, Row]]) -> Iterable[list[Message]]:
        """What has to be asked. Without a cache, a question is made when there is a slot for it."""
        questions = self._questions(batch, rows)
        if self.cache is None:
            return questions
        asked = list(questions)
        keys = [self.cache.key(self.server.body(question)) for question in asked]
        found = self.cache.get(keys)
        batch.replies = {
            name: Completion(found[key]) for name, key in zip(batch.rows, keys, strict=True) if key in found
        }
        batch.keys = {name: key for name, key in zip(batch.rows, keys, strict=True) if key not in found}
        return [question for question, key in zip(asked, keys, strict=True) if key not in found]

    def _questions(self, batch: _Batch, rows: Sequence[tuple[int, Row]]) -> Iterator[list[Message]]:
        for index, row in rows:
            question = self._question(row, batch.notes)
            text = "".join(message["content"] for message in question)
            name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            alike = batch.rows.setdefault(name, [])
            alike.append((index, row))
            if len(alike) == 1:
                yield question

    def _question(self, row: Row, notes: Notes) -> list[Message]:
        context = _written(row.columns.get("context"))[-self.max_chars :]
        known = {"context": context, "action": _written(row.columns.get("action"))}
        shown, harmless = fenced(
            {name: text for name, text in known.items() if text} | self._texts(row), max_chars=self.max_chars
        )
        notes["neutralised"].append(harmless > 0)
        # The notice about data comes last, so that a user's own prompt has it too.
        system = f"{self._system(row)}\n\n{self._about_data}"
        return [{"role": "system", "content": system}, {"role": "user", "content": f"{shown}\n\n{_CLOSING}"}]

    def _end(self, batch: _Batch, answers: Sequence[Completion | Failure]) -> list[float]:
        missing = [name for name in batch.rows if name not in batch.replies]
        batch.replies |= dict(zip(missing, answers, strict=True))
        last = ""
        good: dict[str, str] = {}
        for name, answer in batch.replies.items():
            for index, row in batch.rows[name]:
                kind = answer.kind if isinstance(answer, Failure) else ""
                if isinstance(answer, Failure):
                    reward, last = None, answer.message
                else:
                    reward = self._read(row, answer.text, batch.notes)
                    if reward is None:
                        kind, last = "no verdict", _what_it_says(answer)
                    elif name in batch.keys:
                        good[batch.keys[name]] = answer.text
                batch.rewards[index] = self.failed if reward is None else reward
                batch.failures[kind] += 1
                self._recent.append(kind)
        if self.cache is not None and good:
            self.cache.put(good)
        self.figures = self._figures(batch)
        self._check(last)
        return batch.rewards

    def _figures(self, batch: _Batch) -> dict[str, float]:
        rows, judged = len(batch.rewards), batch.failures.total()
        of_rows = ("no_prediction", "judged", "neutralised")
        failures = {kind: batch.failures[kind] / judged if judged else 0.0 for kind in FAILURES}
        return {
            **{name: sum(batch.notes[name]) / rows if rows else 0.0 for name in of_rows},
            **{name: mean(batch.notes[name]) for name in self.measures},
            "failure_share": sum(failures.values()),
            **{f"failures/{kind.replace(' ', '_')}": share for kind, share in failures.items()},
            "cache_hit_share": 1 - len(batch.keys) / len(batch.rows) if self.cache is not None and batch.rows else 0.0,
            **{f"server/{name}": value for name, value in self.server.figures.items()},
        }

    def _check(self, last: str) -> None:
        failed = Counter(kind for kind in self._recent if kind)
        share = failed.total() / max(len(self._recent), 1)
        if len(self._recent) >= _ENOUGH and share > self.max_failure_share:
            kinds = ", ".join(f"{kind} {count}" for kind, count in failed.most_common())
            raise UserError(
                f"{type(self).__name__}: {self.server.model} at {self.server.base_url} failed to judge {share:.0%} of the last "
                f"{len(self._recent)} predictions ({kinds}; the last: {last}), and max_failure_share is "
                f"{self.max_failure_share:g}; mend the server, or raise it"
            )


class JudgeReward(JudgedReward):
    """A judge's score in [0, 1]: how much of what matters was predicted, or with `binary` 0 or 1: whether all of it was.

    RWML's baselines (table 4), which lose to the embedding distance. Binary counts a verdict below 1 as 0.
    """

    default_prompt = "judge_real"

    def __init__(
        self, server: Server | Mapping[str, Any], *, binary: bool = False, prompt: str | None = None, **settings: Any
    ) -> None:
        super().__init__(server, prompt=prompt or ("judge_binary" if binary else "judge_real"), **settings)
        self.binary = binary

    def _texts(self, row: Row) -> dict[str, str]:
        return {"observed": row.target, "predicted": row.prediction}

    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:  # noqa: ARG002
        value = fields(reply, ["score"]).get("score")
        score = float(value) if isinstance(value, bool) else number(value, 0.0, 1.0)
        return score if score is None or not self.binary else float(score == 1.0)


def _server(settings: Mapping[str, Any]) -> Server:
    known = list(inspect.signature(Server).parameters)
    for name in settings:
        if name not in known:
            raise UserError(f"server: there is no {name!r}{nearest(name, known)}")
    for name in ("base_url", "model"):
        if name not in settings:
            raise UserError(f"server: {name} is missing; write server: {{base_url: http://host:port/v1, model: NAME}}")
    return Server(**settings)


def _written(value: Any) -> str:
    """A column's value for a judge: text, or messages one after the other."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence) and all(isinstance(message, Mapping) for message in value):
        return "\n\n".join(f"{message.get('role')}: {_written(message.get('content'))}" for message in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _what_it_says(answer: Completion) -> str:
    if answer.cut:
        return "a reply was cut at max_tokens"
    return f"a reply ends with {' '.join(answer.text.split())[-80:]!r}"
