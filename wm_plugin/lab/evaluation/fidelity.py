"""How well a world model writes the next observation of real episodes (Word2World's one-step fidelity).

The model gets a real episode up to an action and writes the observation at temperature 0. It is exact if the texts are equal
after white space at their ends is stripped, the success mark included: a right text with a wrong mark is wrong, and so is a wrong
text with a right mark. Means are over all turns of all episodes alike.

`one_step` judges by the tokens of the real observation, without generating; a model in this process is measured by both.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from wm_plugin.client.answers import Answer, Answers, Conversation, LocalModel
from wm_plugin.client.server import KINDS
from wm_plugin.data.contexts import Contexts
from wm_plugin.data.hidden import Shown, as_json
from wm_plugin.data.prompts import COMPLETED, Prompts
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.cases import Case, Demonstrations, Episode, Item, episodes, kind_of
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, ratio, write_result, write_rows
from wm_plugin.lab.evaluation.one_step import BINS, TokenScores, calibration_error, token_scores
from wm_plugin.rewards.exact import ExactReward
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.json_match import NO_JSON, parse
from wm_plugin.rewards.rouge import RougeReward
from wm_plugin.rewards.words import word_f1
from wm_plugin.tokens.message import Message

NAME = "one-step"
MARK = SUCCESS.strip()
SCORES = ("exact", "text", "success_flag", "word_f1", "rouge", "embedding", "json_keys")
GROUPED = ("exact", "success_flag", "word_f1", "embedding", "json_keys")  # the scores of groups
GROUPS = ("turn", "tool", "observer", "error", "category", "success")
OTHERS = "(others)"
_GROUPS = 100  # of one kind, the largest; a data set may have a tool a line
_AT_ONCE = 2048  # questions in memory; a server idles only at their end
_BATCHED = 256  # the same where answers depend on their batch: a killed run repeats all of them
_PAIRS = 256  # texts whose cosines are asked for at once
_SERVER = "a server's answer has no probabilities of the real observation's tokens; --model measures them"
_OF_TOKENS = "the count is of tokens"
_REASONS = "the model is trained to reason first, so that the real observation alone has no probability"


class Cosines:
    """The cosines of predicted and real texts as a `Model`, so that `Answers` keeps them.

    A text that the server refuses is a failure, not a cosine of 0.

    Args:
        reward: scores each prediction and target, such as `EmbeddingReward`, whose `figures` say what was refused.
        name: the name of its model.
    """

    batched = False

    def __init__(self, reward: Callable[[list[str], list[str]], Sequence[float]], name: str) -> None:
        self._reward = reward
        self.settings = {"embedding": name, "temperature": 0}  # nothing is sampled

    def ask(
        self,
        conversations: Sequence[Conversation],
        seeds: Sequence[int],  # noqa: ARG002
        keep: Callable[[int, Answer], None],
    ) -> None:
        """Answer each conversation, a real and a predicted text, with their cosine."""
        real, predicted = ([messages[place]["content"] for messages in conversations] for place in (0, 1))
        values = self._reward(predicted, real)
        one_by_one = self._refused()  # some were refused: ask again to see which
        for index, value in enumerate(values):
            if one_by_one:
                (value,) = self._reward([predicted[index]], [real[index]])
            refused = one_by_one and self._refused()
            keep(index, Answer("", failure="refused") if refused else Answer(repr(float(value))))

    def _refused(self) -> bool:
        return bool(getattr(self._reward, "figures", {}).get("failures/refused"))


def fidelity(
    items: Iterable[Item],
    answers: Answers,
    prompts: Prompts,
    *,
    kind: str = "word2world",
    world_context: Shown | None = None,
    contexts: Contexts | None = None,
    demonstrations: Demonstrations | None = None,
    embedding: Cosines | None = None,
    limit: int | None = None,
    seed: int = 0,
    subject: str = "",
    data: str = "",
    folder: Path | None = None,
) -> Evaluation:
    """Ask for every turn's observation, and compare.

    Args:
        items: trajectories, or transitions for kinds that are made of these.
        answers: the model's, at temperature 0.
        prompts: those that the model was trained with, or any for a model that was not.
        kind: one of `data.kinds.KINDS` with prompts; decides what a question is.
        world_context: the parts of the hidden state that are shown. None: as the kind is trained.
        contexts: hidden contexts by hand, which complete those of the items.
        demonstrations: for few-shot prompts.
        embedding: also measures the cosine of the predicted and the real text.
        limit: the number of trajectories.
        seed: of the prompts' variants and of the intervals.
        subject, data: as in `Evaluation`.
        folder: gets `rows.jsonl` and `result.json`, and keeps cosines in `embeddings.jsonl`.

    Raises:
        UserError: the model samples, or as from `episodes`, `Demonstrations` and `Answers`.
    """
    if (temperature := answers.settings.get("temperature")) != 0:
        raise UserError(f"one-step prediction is at temperature 0, not {temperature}")
    hidden = kind_of(kind).world_context_shown if world_context is None else world_context
    if contexts is not None:
        items = contexts.fill_all(items)
    if demonstrations is not None:
        shown = demonstrations
        items = (shown.shown(item, prompts, world_context=hidden) for item in items)
    left_out: Counter[str] = Counter()
    asked = episodes(items, kind, prompts, world_context=hidden, seed=seed, limit=limit, left_out=left_out)
    settings = {
        "kind": kind,
        "prompts": prompts.name,
        "world_context": as_json(hidden),
        "contexts": "" if contexts is None else contexts.digest,
        "shots": demonstrations.shots if demonstrations else 0,
        "demonstrations": demonstrations.source if demonstrations else "",
        "limit": limit,
    }
    return measure(
        asked,
        answers,
        _Likelihood(answers),
        prompts,
        "" if kind_of(kind).of == "dialogues" else prompts.tag,
        embedding=embedding,
        settings=settings,
        left_out=left_out,
        seed=seed,
        subject=subject,
        data=data,
        folder=folder,
    )


class Likelihood(Protocol):
    """Scores the real observations' tokens. `note` says why some or all turns have no score; "" if all have one."""

    def __call__(self, episode: Episode) -> list[TokenScores | None]:
        """Return each case's scores."""
        ...

    @property
    def note(self) -> str: ...


def measure(
    asked: Iterable[Episode],
    answers: Answers,
    likelihood: Likelihood,
    prompts: Prompts | None = None,
    tag: str = "",
    *,
    embedding: Cosines | None = None,
    settings: Mapping[str, Any],
    left_out: Mapping[str, int],
    seed: int = 0,
    subject: str = "",
    data: str = "",
    folder: Path | None = None,
) -> Evaluation:
    """Ask about every case, compare, and count: the part of `fidelity` that does not depend on what a question is.

    Args:
        asked: episodes, which are read once.
        prompts: the questions' prompts; None: an answer is the observation and nothing else.
        tag: the tag around the prediction in an answer.
        settings: what the questions depend on, beside the seed and the models.
        left_out: turns without a case, by reason; read after all episodes.
    """
    cosines = Answers(embedding, folder and folder / "embeddings.jsonl") if embedding else None
    scorer, tally = _Scorer(prompts, tag, cosines), _Tally(seed)
    rows = _rows(asked, answers, scorer, likelihood, tally, seed)
    if folder is None:
        for _ in rows:
            pass
    else:
        write_rows(rows, folder)
    failures = Counter(row.failure for row in tally.rows if row.failure)
    notes = [f"{count:,} turns are left out: {reason}" for reason, count in left_out.items() if count]
    if scorer.without_cosine:
        notes.append(f"embedding: {scorer.without_cosine:,} texts have no cosine, since their server refused them")
    if likelihood.note:
        notes.append(f"nll: {likelihood.note}")
    if calls := sum(failures[kind] for kind in KINDS):
        notes.append(f"{calls:,} calls failed; the next run into the same folder asks them again")
    models = {"model": answers.settings, "embedding": embedding.settings["embedding"] if embedding else ""}
    evaluation = Evaluation(
        NAME,
        subject,
        data,
        {**settings, "seed": seed, **models},
        list(tally.measures(likelihood.note)),
        dict(sorted(failures.items())),
        notes,
    )
    if folder is not None:
        write_result(evaluation, folder)
    return evaluation


def _rows(
    asked: Iterable[Episode],
    answers: Answers,
    scorer: "_Scorer",
    likelihood: Likelihood,
    tally: "_Tally",
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Make the rows of `rows.jsonl`, and count them."""
    with answers:  # its file is read once, not for each chunk
        for chunk in _chunks(asked, _BATCHED if answers.model.batched else _AT_ONCE):
            cases = list(chain.from_iterable(episode.cases for episode in chunk))
            replies = answers([case.messages for case in cases], seed=seed, at_once=len(cases))
            tokens = chain.from_iterable(likelihood(episode) for episode in chunk)
            for case, row, of_tokens in zip(cases, scorer(cases, replies), tokens, strict=True):
                tally.add(case, row, of_tokens)
                scores = {k: v for k, v in row["scores"].items() if v is not None and not math.isnan(v)}
                if of_tokens is not None:
                    scores["nll"] = float(of_tokens.nll.mean())
                yield {
                    "trajectory": case.trajectory,
                    "turn": case.turn,
                    "tool": case.tool,
                    "observer": case.observer,
                    "context": case.before,
                    "action": case.action,
                    "real": case.real,
                    **row,
                    "scores": scores,
                }


def _chunks(asked: Iterable[Episode], size: int) -> Iterator[list[Episode]]:
    """Split episodes into chunks of at least `size` cases."""
    chunk: list[Episode] = []
    count = 0
    for episode in asked:
        chunk.append(episode)
        count += len(episode.cases)
        if count >= size:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk


class _Scorer:
    """Compares answers with the real observations: `predicted`, `scores` and `failure` of each row."""

    def __init__(self, prompts: Prompts | None, tag: str, cosines: Answers | None) -> None:
        self._prompts, self._tag, self._cosines = prompts, tag, cosines
        self._exact, self._rouge = ExactReward(), RougeReward()
        self._flagged = prompts is not None and (prompts.success or bool(prompts.completion))
        self.without_cosine = 0

    def __call__(self, cases: Sequence[Case], answers: Sequence[Answer]) -> list[dict[str, Any]]:
        rows = [self._row(case, answer) for case, answer in zip(cases, answers, strict=True)]
        if self._cosines is not None:
            self._add_cosines(cases, rows)
        return rows

    def _add_cosines(self, cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> None:
        assert self._cosines is not None
        whole = [place for place, row in enumerate(rows) if not row["failure"]]
        pairs: list[list[Message]] = [
            [
                {"role": "user", "content": self._parts(cases[place].real)[0]},
                {"role": "assistant", "content": self._parts(rows[place]["predicted"])[0]},
            ]
            for place in whole
        ]
        for row in rows:
            row["scores"]["embedding"] = 0.0
        for place, cosine in zip(whole, self._cosines(pairs, at_once=_PAIRS), strict=True):
            rows[place]["scores"]["embedding"] = math.nan if cosine.failure else float(cosine.text)
            self.without_cosine += bool(cosine.failure)

    def _row(self, case: Case, answer: Answer) -> dict[str, Any]:
        prediction = answer.text if self._prompts is None else extract(answer.text, self._tag).prediction
        failure = answer.trouble or ("no prediction" if prediction is None else "")
        if failure == "empty" and not case.real.strip():
            failure = ""  # the model foresees that nothing is observed
        text, flag = self._parts(prediction or "")
        real, really = self._parts(case.real)
        right = not failure
        scores: dict[str, float | None] = {
            "exact": float(right and self._exact([prediction or ""], [case.real])[0] == 1),
            "text": float(right and text == real),
            "success_flag": float(right and flag == really) if self._flagged and case.known else None,
            "word_f1": word_f1(text, real) if right else 0.0,
            "rouge": self._rouge([text], [real])[0] if right else 0.0,
            "json_keys": json_keys(text if right else "", real),
        }
        return {"predicted": answer.text if prediction is None else prediction, "scores": scores, "failure": failure}

    def _parts(self, text: str) -> tuple[str, bool | None]:
        """Split a text into the observation and what it says of success."""
        text = text.strip()
        if self._prompts is None:
            return text, None
        if not self._prompts.completion:
            return text.removesuffix(MARK).rstrip(), text.endswith(MARK)
        for flag, line in COMPLETED.items():
            if text.endswith(line):
                return text.removesuffix(line).removesuffix("\n").rstrip(), flag
        return text, None


def json_keys(predicted: str, real: str) -> float | None:
    """Return the F1 of two JSON values' keys, each with its place; the items of a list are one place.

    None if the real text is no JSON with keys. A prediction that is no JSON gets 0.
    """
    places: dict[tuple[int, str | None], int] = {}
    observed = _keys(parse(real), places)
    if not observed:
        return None
    keys = _keys(parse(predicted), places)
    return 2 * len(keys & observed) / (len(keys) + len(observed))


def _keys(value: Any, places: dict[tuple[int, str | None], int]) -> set[int]:
    """Number a value's keys: `places` gives each (the place around it, key) a number of its own."""
    keys: set[int] = set()
    parts = [] if value is NO_JSON else [(value, 0)]
    while parts:
        part, around = parts.pop()
        if isinstance(part, dict):
            for key, item in part.items():
                place = places.setdefault((around, key), len(places) + 1)
                keys.add(place)
                parts.append((item, place))
        elif isinstance(part, list):
            place = places.setdefault((around, None), len(places) + 1)
            parts += [(item, place) for item in part]
    return keys


class _Likelihood:
    """Scores the real observations' tokens by a model in this process, with the tokens that end an answer, as in training."""

    def __init__(self, answers: Answers) -> None:
        self._why, self._reasons = "", False
        self._tokenise: Tokeniser | None = None
        if not isinstance(answers.model, LocalModel):
            self._why = _SERVER
            return
        self._model = answers.model.predictor.model
        try:
            self._tokenise = Tokeniser(answers.model.predictor.tokenizer)
        except UserError as error:
            self._why = str(error)

    def __call__(self, episode: Episode) -> list[TokenScores | None]:
        none: list[TokenScores | None] = [None] * len(episode.cases)
        self._reasons |= episode.sample is None
        if self._tokenise is None or episode.sample is None:
            return none
        try:
            tokens = self._tokenise(episode.sample)
        except UserError as error:
            self._why = self._why or str(error)
            return none
        scores = token_scores(self._model, tokens.ids, tokens.mask) if any(tokens.mask) else []
        if len(scores) != len(none):
            self._why = self._why or "an observation has no token"
            return none
        return [*scores]

    @property
    def note(self) -> str:
        return self._why or (_REASONS if self._reasons else "")


@dataclass(frozen=True)
class _Row:
    """What is counted of a turn; `nll` is the sum over its `tokens`."""

    trajectory: str
    failure: str
    scores: Mapping[str, float | None]
    groups: Mapping[str, str]
    nll: float
    tokens: int


class _Tally:
    """Counts rows, and makes the measures of them."""

    def __init__(self, seed: int) -> None:
        self.rows: list[_Row] = []
        self._seed = seed
        self._bins: dict[str, Tensor] = {}  # by trajectory

    def add(self, case: Case, row: dict[str, Any], tokens: TokenScores | None) -> None:
        flag = row["scores"]["success_flag"]
        groups = {
            "turn": str(case.turn),
            "tool": case.tool,
            "observer": case.observer,
            "error": "error" if case.error else "no error",
            "category": case.category,
            "success": "" if flag is None else "done" if case.won else "not done",
        }
        nll, count = (0.0, 0) if tokens is None else (float(tokens.nll.sum()), len(tokens.nll))
        self.rows.append(_Row(case.trajectory, row["failure"], row["scores"], groups, nll, count))
        if tokens is not None:
            none = torch.zeros(BINS, 3, dtype=torch.float64)
            self._bins[case.trajectory] = self._bins.get(case.trajectory, none) + tokens.bins()

    def measures(self, note: str) -> Iterator[Measure]:
        """Measure all rows, then each group, then the tokens' accuracy by confidence.

        Args:
            note: why tokens have no likelihood.
        """
        names = [name for name in SCORES if any(row.scores.get(name) is not None for row in self.rows)]
        for name in names or ["exact"]:
            yield self._mean(name, self.rows)
        yield self._nll(self.rows, note=note)
        bins = torch.stack([*self._bins.values()]) if self._bins else torch.zeros(1, BINS, 3)
        tokens = int(bins[..., 0].sum())
        error = calibration_error(bins.sum(0)) if tokens else None
        yield Measure("calibration_error", error, "share", tokens, with_failed=error, note=note or _OF_TOKENS)
        for by in GROUPS:
            for group, rows in self._grouped(by):
                for name in GROUPED:
                    if any(row.scores.get(name) is not None for row in rows):
                        yield self._mean(name, rows, by=by, group=group)
                if any(row.tokens for row in rows):
                    yield self._nll(rows, by=by, group=group)
        for place in range(BINS if tokens else 0):
            counts, confidence, right = (bins[:, place, column].tolist() for column in range(3))
            if count := int(sum(counts)):
                group = f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}"
                remark = f"at a mean confidence of {sum(confidence) / count:.3f}; {_OF_TOKENS}"
                of: dict[str, Any] = {"by": "confidence", "group": group, "note": remark, "seed": self._seed}
                yield ratio("token_accuracy", "share", right, counts, list(self._bins), **of)

    def _mean(self, name: str, rows: Sequence[_Row], **group: Any) -> Measure:
        scored = [(row, score) for row in rows if (score := row.scores.get(name)) is not None]
        # NaN where the embedding server refused a text
        whole = [(row, score) for row, score in scored if not row.failure and not math.isnan(score)]
        note = "" if whole else "no turn with an answer" if scored else "no turn to measure it on"
        values, clusters = [score for _, score in whole], [row.trajectory for row, _ in whole]
        of: dict[str, Any] = {"failed": len(scored) - len(whole), "note": note, "seed": self._seed}
        return ratio(name, "share", values, [1] * len(values), clusters, **of, **group)

    def _nll(self, rows: Sequence[_Row], **more: Any) -> Measure:
        kept = [row for row in rows if row.tokens]
        sums, counts, clusters = [r.nll for r in kept], [r.tokens for r in kept], [r.trajectory for r in kept]
        failed = len(rows) - len(kept) if kept else 0
        made = ratio("nll", "nats", sums, counts, clusters, seed=self._seed, **more)
        return replace(made, count=len(kept), failed=failed, with_failed=None)

    def _grouped(self, by: str) -> Iterator[tuple[str, list[_Row]]]:
        """Yield each group's rows, in order; those beyond the largest `_GROUPS` together."""
        groups: dict[str, list[_Row]] = {}
        for row in self.rows:
            if row.groups[by]:
                groups.setdefault(row.groups[by], []).append(row)
        if len(groups) > _GROUPS:
            largest = set(sorted(groups, key=lambda name: -len(groups[name]))[:_GROUPS])
            rest = [row for row in self.rows if row.groups[by] and row.groups[by] not in largest]
            groups = {name: rows for name, rows in groups.items() if name in largest} | {OTHERS: rest}
        order: Callable[[str], Any] = (lambda name: (len(name), name)) if by == "turn" else str
        yield from sorted(groups.items(), key=lambda item: order(item[0]))
