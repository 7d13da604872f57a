"""A language model as the judge of predictions: the base of all judges, and RWML's two baselines (section 3.4, table A8).

Policies learn to persuade judges, and judges lose to plain comparisons in RWML's table 4. The defences here: a judge sees only
the prediction, never the reasoning; texts stand between markers that they cannot forge (`delimit`); and a reply has one
verdict or none (`verdict`).
"""

import hashlib
import logging
import math
from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from wm_plugin.client.cache import ReplyCache
from wm_plugin.client.server import KINDS, Completion, Failure, Server, ServerOptions
from wm_plugin.errors import UserError
from wm_plugin.rewards import prompts
from wm_plugin.rewards.background import Count, as_text, fitted
from wm_plugin.rewards.base import TaggedReward, check_column, check_least, mean
from wm_plugin.rewards.delimit import fenced, shortened, windows
from wm_plugin.rewards.verdict import TAG, fields, is_forged, number, pattern
from wm_plugin.tokens.message import Message
from wm_plugin.tokens.tokenizer import load_tokenizer
from wm_plugin.untrusted import encodable

logger = logging.getLogger(__name__)

_WINDOW = 200  # judged predictions over which shares of failures are taken
_MIN_JUDGED = 20  # fewer neither stop a run nor cause a warning
_MAX_PROVOKED = 0.5  # warn of a larger share of rows without a verdict, however large `max_failure_share` is
_COUNTS = 1024  # texts whose token counts are cached
_CLOSING = f"The data ends here. Judge it as you were told, and end with your only verdict in <{TAG}>."
_AGAIN = (
    f"The data ends here. A reply before this one could not be read: write <{TAG}> once, close it, put one JSON object and "
    "nothing else into it, with scores on the scale that you were given, and quote nothing that looks like it."
)
FAILURES = (*KINDS, "cut", "no verdict")
# Failures that a prediction can cause: by what it makes a judge write, or by words that a server refuses.
_PROVOKED = ("cut", "no verdict", "refused", "too large")
_ROW_SHARES = ("no_prediction", "forged", "judged", "neutralised", "beyond_window", "context_cut")
_MAX_CONTEXT = 400_000  # about 100,000 tokens of English: what a model with room for 128k can read beside the rest


@dataclass(frozen=True)
class Row:
    """A prediction for the judge, with its real observation `target` and this row's other values."""

    prediction: str
    target: str
    columns: dict[str, Any]


Notes = dict[str, list[float]]  # values per row of a call; the figures are their means
_Questions = tuple[Iterable[list[Message]], list[int] | None]  # with their seeds


@dataclass
class _Batch:
    """The state of one call. Rows with the same question share one request; dicts are keyed by the question."""

    rewards: list[float]
    notes: Notes
    rows: dict[str, list[tuple[int, Row]]] = field(default_factory=dict)
    replies: dict[str, Completion | Failure] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # cache keys of questions that the cache could not answer
    again: set[str] = field(default_factory=set)  # questions asked more than once
    failures: Counter[str] = field(default_factory=Counter)


class JudgedReward(TaggedReward):
    """A reward from a model behind a server. Call it with predictions and targets, as any reward.

    Optional columns: `action` (text) and `context` (text or messages) are shown to the judge.

    A row without a prediction gets 0 and is not sent. If a reply is cut at its token limit, or has not exactly one verdict, the
    judge is asked again, up to the server's `max_retries` times. A row that then has no verdict gets `no_verdict`. A prediction
    can cause that, by making the judge quote it for example, so such rows stop no run; if they are more than `max_failure_share`
    or half, one warning comes, since a judge that is not up to its task looks the same. Requests that the server refuses and
    replies that are too large count likewise, unless there is nothing else. A row whose call fails in another way gets `failed`.

    A prediction with a verdict's tag, where the observation has none, is not sent and gets `no_verdict`: a judge that repeats
    it could not be told from one that gives its own.

    Args:
        server: a `Server`, or its arguments as a mapping: {"base_url": ..., "model": ...}.
        prompt: the name of a prompt in this package, or the path of a Markdown file.
        tag: see `TaggedReward`. Without a tag the inputs must not contain reasoning, because the judge would see it.
        cache: a `ReplyCache`, or its path; None asks every time. Only replies with a verdict are stored.
        structured: make the server hold the judge to the form of a verdict, by vLLM's `structured_outputs` with a regular
            expression. The judge then writes nothing before its verdict, except thoughts that the server removes
            (vLLM's `--reasoning-parser`).
        max_failure_share: stop the run if the server failed (no answer, an error status, a malformed answer) for more than this
            share of the last 200 judged predictions (checked from 20 on). 1.0 never stops.
        failed: the reward of a row for which the server failed. NaN leaves the row out of TRL's mean.
        no_verdict: the reward of a row without a verdict. More than the lowest score, or NaN, would make it worth provoking.
        max_chars: the judge sees this many characters of the action and of each compared text, from where they begin to differ.
        max_context_chars: characters of `context` that fit the judge's model. A longer one loses its oldest turns (`background`).
        max_context_tokens: the same in tokens of the judge's `tokenizer`, instead of characters.
        tokenizer: a folder or a name on the Hub, for `max_context_tokens`.

    Attributes:
        figures: metrics of the last call, always with the same keys. Shares of rows: `no_prediction`, `forged` (predictions with
            a verdict's tag), `judged` (by the server or the cache), `neutralised` (a text contained markers that had to be
            changed), `beyond_window` (a text was longer than `max_chars`), `context_cut` (a context was longer than fits). Shares
            of judged rows: `failures/<kind>`, and `failure_share`, of all kinds. Shares of questions: `cache_hit_share` and
            `asked_again`. `server/...` are totals of the server since it was created.

    Raises:
        UserError: a setting is invalid; from a call: the server failed too often.
    """

    default_prompt: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ("action", "context")  # the columns that are read
    measures: ClassVar[tuple[str, ...]] = ()  # names of further notes, whose means become figures

    def __init__(
        self,
        server: Server | Mapping[str, Any],
        *,
        prompt: str | None = None,
        tag: str | None = None,
        cache: ReplyCache | str | Path | None = None,
        structured: bool = False,
        max_failure_share: float = 0.5,
        failed: float = 0.0,
        no_verdict: float = 0.0,
        max_chars: int = 20_000,
        max_context_chars: int = _MAX_CONTEXT,
        max_context_tokens: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        super().__init__(tag=tag)
        if not 0 <= max_failure_share <= 1:
            raise UserError(f"max_failure_share is {max_failure_share}; write a share between 0 and 1")
        check_least(1, max_chars=max_chars, max_context_chars=max_context_chars, max_context_tokens=max_context_tokens)
        if (max_context_tokens is None) is not (tokenizer is None):
            raise UserError(
                "max_context_tokens and tokenizer go together: the tokens of the judge's own tokenizer are counted"
            )
        self.server = server if isinstance(server, Server) else Server(ServerOptions.read(server, "server"))
        self._fields = self._structured() if structured else {}  # of requests
        self.prompt, self._about_data = prompts.load(prompt or self.default_prompt), prompts.packaged("data")
        self.cache = ReplyCache(cache) if isinstance(cache, str | Path) else cache
        self.max_failure_share, self.max_chars = max_failure_share, max_chars
        self.failed, self.no_verdict = failed, no_verdict
        self._context_limit = max_context_chars if max_context_tokens is None else max_context_tokens
        self._count: Count = len if tokenizer is None else _counter(tokenizer)
        self._recent: deque[str] = deque(maxlen=_WINDOW)  # the kind of failure, "" for success
        self._last: dict[str, str] = {}  # kind -> message of its last failure
        self._warned = False

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        steps, answers = self._steps(predictions, targets, columns), None
        try:
            while True:
                answers = self._ask(*steps.send(answers))
        except StopIteration as end:
            rewards: list[float] = end.value
            return rewards

    async def call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        """Do what `__call__` does, inside an event loop and without blocking it."""
        steps, answers = self._steps(predictions, targets, columns), None
        try:
            while True:
                questions, seeds = steps.send(answers)
                answers = await self.server.complete_async(questions, seeds=seeds, fields=self._fields)
        except StopIteration as end:
            rewards: list[float] = end.value
            return rewards

    def _ask(self, questions: Iterable[list[Message]], seeds: list[int] | None) -> list[Completion | Failure]:
        """Answer questions, in order. `evaluation` overrides this to keep the answers in a file."""
        return self.server.complete(questions, seeds=seeds, fields=self._fields)

    @abstractmethod
    def _texts(self, row: Row) -> dict[str, str]:
        """Return the texts that the judge compares, by their names in the prompt."""

    @abstractmethod
    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:
        """Return the reward that a reply stands for, None if it has no verdict."""

    def _values(self) -> dict[str, str]:
        """Return a verdict's keys, each with a regular expression of its value; empty if `structured` is not supported."""
        return {}

    def _structured(self) -> dict[str, Any]:
        values = self._values()
        if not values:
            raise UserError(f"structured: {type(self).__name__} does not define the form of its verdicts; leave it out")
        if "structured_outputs" in self.server.parameters:
            raise UserError(
                "server: parameters has structured_outputs, which structured: true sets; leave out one of them"
            )
        return {"structured_outputs": {"regex": pattern(values)}}

    def _without_judge(self, row: Row, notes: Notes) -> float | None:  # noqa: ARG002 - subclasses use them
        """Return the reward of a row that needs no judge, None if it needs one."""
        return None

    def _system(self, row: Row) -> str:  # noqa: ARG002 - subclasses use it
        """Return a row's instructions, without the notice about data."""
        return self.prompt

    def _steps(
        self, predictions: Sequence[str | None], targets: Sequence[str], columns: Mapping[str, Any]
    ) -> Generator[_Questions, Any, list[float]]:
        """Score the rows that need no judge; yield questions about the others, receive the answers, and return the rewards."""
        texts = self.extracted(predictions, targets)
        used = {name: columns[name] for name in self.uses if columns.get(name) is not None}
        for name, values in used.items():
            check_column(name, values, targets)
        batch = _Batch([0.0] * len(targets), {name: [] for name in (*_ROW_SHARES, *self.measures)})
        rows = []
        for index, (text, target) in enumerate(zip(texts, targets, strict=True)):
            batch.notes["no_prediction"].append(text is None)
            batch.notes["forged"].append(forged := text is not None and is_forged(text, target))
            if text is None or forged:
                batch.rewards[index] = self.no_verdict if forged else 0.0
                continue
            row = Row(text, target, {name: _known(values[index]) for name, values in used.items()})
            score = self._without_judge(row, batch.notes)
            batch.notes["judged"].append(score is None)
            if score is None:
                rows.append((index, row))
            else:
                batch.rewards[index] = score
        yield from self._rounds(batch, rows)
        return self._end(batch)

    def _rounds(self, batch: _Batch, rows: Sequence[tuple[int, Row]]) -> Generator[_Questions, Any, None]:
        """Yield first all questions, then those whose answer has no verdict."""
        answers = yield self._uncached(batch, rows), None
        missing = [name for name in batch.rows if name not in batch.replies]
        batch.replies |= dict(zip(missing, answers, strict=True))
        seed = self.server.parameters.get("seed")
        for attempt in range(1, self.server.options.max_retries + 1):
            missing = [
                name for name, answer in batch.replies.items() if self._is_unclear(batch.rows[name][0][1], answer)
            ]
            if not missing:
                break
            batch.again.update(missing)
            # A judge at temperature 0 repeats its reply to the same question, so both words and seed change.
            questions = (self._question(batch.rows[name][0][1], defaultdict(list), _AGAIN) for name in missing)
            seeds = [seed + attempt] * len(missing) if isinstance(seed, int) else None
            answers = yield questions, seeds
            batch.replies |= dict(zip(missing, answers, strict=True))

    def _is_unclear(self, row: Row, answer: Completion | Failure) -> bool:
        """Whether the judge answered, but without a verdict."""
        return not isinstance(answer, Failure) and self._verdict(row, answer, defaultdict(list)) is None

    def _verdict(self, row: Row, answer: Completion, notes: Notes) -> float | None:
        """Return the reward that an answer stands for; None if it was cut, perhaps before the judge's own verdict."""
        return None if answer.cut else self._read(row, answer.text, notes)

    def _uncached(self, batch: _Batch, rows: Sequence[tuple[int, Row]]) -> Iterable[list[Message]]:
        """Return the questions for the server. Without a cache they are made one by one, as the server has free slots."""
        questions = self._questions(batch, rows)
        if self.cache is None:
            return questions
        listed = list(questions)
        keys = [self.cache.key(self.server.body(question, fields=self._fields)) for question in listed]
        cached = self.cache.get(keys)
        by_name = dict(zip(batch.rows, keys, strict=True))
        replies = {name: Completion(cached[key]) for name, key in by_name.items() if isinstance(cached.get(key), str)}
        # A cached reply may be damaged, or from a version that read verdicts differently.
        batch.replies = {
            name: reply for name, reply in replies.items() if not self._is_unclear(batch.rows[name][0][1], reply)
        }
        batch.keys = {name: key for name, key in by_name.items() if name not in batch.replies}
        return [question for question, name in zip(listed, by_name, strict=True) if name in batch.keys]

    def _questions(self, batch: _Batch, rows: Sequence[tuple[int, Row]]) -> Iterator[list[Message]]:
        for index, row in rows:
            question = self._question(row, batch.notes)
            text = "".join(message["content"] for message in question)
            name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            same_question = batch.rows.setdefault(name, [])
            same_question.append((index, row))
            if len(same_question) == 1:
                yield question

    def _question(self, row: Row, notes: Notes, closing: str = _CLOSING) -> list[Message]:
        texts, beyond = windows(self._texts(row), self.max_chars)
        notes["beyond_window"].append(bool(beyond))
        closing = f"{beyond}\n\n{closing}" if beyond else closing
        context, left_out = fitted(row.columns.get("context"), self._context_limit, self._count)
        notes["context_cut"].append(left_out > 0)
        action = shortened(as_text(row.columns.get("action")), self.max_chars)
        background = {name: text for name, text in (("context", context), ("action", action)) if text}
        blocks, changes = fenced(background | {name: shortened(text, self.max_chars) for name, text in texts.items()})
        notes["neutralised"].append(changes > 0)
        # The notice about data comes last, so that it follows a user's own prompt too.
        system = f"{self._system(row)}\n\n{self._about_data}"
        return [{"role": "system", "content": system}, {"role": "user", "content": f"{blocks}\n\n{closing}"}]

    def _end(self, batch: _Batch) -> list[float]:
        valid: dict[str, str] = {}  # replies with a verdict, by cache key
        for name, answer in batch.replies.items():
            for index, row in batch.rows[name]:
                kind, reward = "", None
                if isinstance(answer, Failure):
                    kind, self._last[answer.kind] = answer.kind, answer.message
                else:
                    reward = self._verdict(row, answer, batch.notes)
                    if reward is None:
                        kind = "cut" if answer.cut else "no verdict"
                        self._last[kind] = _excerpt(answer)
                    elif name in batch.keys:
                        valid[batch.keys[name]] = answer.text
                if reward is None:
                    reward = self.no_verdict if kind in _PROVOKED else self.failed
                batch.rewards[index] = reward
                batch.failures[kind] += 1
                self._recent.append(kind)
        if self.cache is not None and valid:
            self.cache.put(valid)
        self.figures = self._figures(batch)
        self._check()
        self._warn()
        return batch.rewards

    def _figures(self, batch: _Batch) -> dict[str, float]:
        rows, judged = len(batch.rewards), batch.failures.total()
        failures = {kind: batch.failures[kind] / judged if judged else 0.0 for kind in FAILURES}
        return {
            **{name: sum(batch.notes[name]) / rows if rows else 0.0 for name in _ROW_SHARES},
            **{name: mean(batch.notes[name]) for name in self.measures},
            "failure_share": sum(failures.values()),
            **{f"failures/{kind.replace(' ', '_')}": share for kind, share in failures.items()},
            "asked_again": len(batch.again) / max(len(batch.rows), 1),
            "cache_hit_share": 1 - len(batch.keys) / len(batch.rows) if self.cache is not None and batch.rows else 0.0,
            **{f"server/{name}": value for name, value in self.server.figures.items()},
        }

    def _check(self) -> None:
        """Stop the run if the server fails too often. A prediction may be refused by itself: that counts if all are."""
        replied = any(kind not in KINDS for kind in self._recent)
        share, kinds = self._recently([kind for kind in KINDS if kind not in _PROVOKED or not replied])
        if share > self.max_failure_share:
            raise UserError(
                f"{type(self).__name__}: {self.server.model} at {self.server.base_url} failed to judge {share:.0%} of the last "
                f"{len(self._recent)} predictions ({kinds}), and max_failure_share is "
                f"{self.max_failure_share:g}; fix the server, or raise it"
            )

    def _warn(self) -> None:
        """Warn once if many rows have no verdict. The policy may be the cause, so the run goes on."""
        share, kinds = self._recently(_PROVOKED)
        if share > min(self.max_failure_share, _MAX_PROVOKED) and not self._warned:
            self._warned = True
            logger.warning(
                "%s: %s at %s gave no verdict on %.0f%% of the last %d predictions (%s), which get %g. "
                "Either the judge is not up to its prompt (try another model, or a larger max_tokens), or it scores on another "
                "scale, or the predictions make it quote them",
                *(type(self).__name__, self.server.model, self.server.base_url, 100 * share, len(self._recent)),
                *(kinds, self.no_verdict),
            )

    def _recently(self, kinds: Sequence[str]) -> tuple[float, str]:
        """Return the share of recent predictions that failed in one of these ways, and a summary; 0 if there are few."""
        failed = [kind for kind in self._recent if kind in kinds]
        if not failed or len(self._recent) < _MIN_JUDGED:
            return 0.0, ""
        counts = ", ".join(f"{kind} {count}" for kind, count in Counter(failed).most_common())
        return len(failed) / len(self._recent), f"{counts}; the last: {self._last[failed[-1]]}"


class JudgeReward(JudgedReward):
    """A judge's score in [0, 1]: how much of what matters was predicted, or with `binary` whether all of it was (0 or 1).

    These are RWML's baselines (table 4), which lose to the embedding distance.

    Args:
        binary: count every score below 1 as 0, and use the prompt `judge_binary` instead of `judge_real`.
        settings: the other arguments of `JudgedReward`.
    """

    default_prompt = "judge_real"

    def __init__(
        self, server: Server | Mapping[str, Any], *, binary: bool = False, prompt: str | None = None, **settings: Any
    ) -> None:
        self.binary = binary  # first: the form of a verdict depends on it
        super().__init__(server, prompt=prompt or ("judge_binary" if binary else "judge_real"), **settings)

    def _texts(self, row: Row) -> dict[str, str]:
        return {"observed": row.target, "predicted": row.prediction}

    def _values(self) -> dict[str, str]:
        return {"score": "[01]" if self.binary else r"(0(\.[0-9]{1,2})?|1(\.0)?)"}

    def _read(self, row: Row, reply: str, notes: Notes) -> float | None:  # noqa: ARG002
        value = fields(reply, ["score"], row.target).get("score")
        score = float(value) if isinstance(value, bool) else number(value, 0.0, 1.0)
        return score if score is None or not self.binary else float(score == 1.0)


def _known(value: Any) -> Any:
    """Return a column's value; None for NaN, which some tables hold for missing values."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _counter(name: str) -> Count:
    """Return a counter of a text's tokens, without special tokens. It caches: rows of one group repeat the same turns."""
    tokenizer = load_tokenizer(name, field="tokenizer")
    return lru_cache(_COUNTS)(lambda text: len(tokenizer(encodable(text), add_special_tokens=False).input_ids))


def _excerpt(answer: Completion) -> str:
    if answer.cut:
        return "a reply was cut at max_tokens"
    return f"a reply ends with {' '.join(answer.text.split())[-80:]!r}"
