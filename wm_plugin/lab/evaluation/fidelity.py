"""How well a world model writes the next observation of real episodes (Word2World's one-step fidelity).

The model gets a real episode up to an action and writes the observation at temperature 0. It is exact if the texts are equal
after white space at their ends is stripped, with the success mark: a right text with a wrong mark is wrong, and so is a right
mark with a wrong text. Means are over all turns of all episodes alike, not of episodes.

`one_step` judges without generating, by the tokens of the real observation; a model in this process is measured so, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, interval, write_result, write_rows
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
GROUPED = ("exact", "success_flag", "word_f1", "embedding", "json_keys")  # what groups have
GROUPS = ("turn", "tool", "observer", "error", "category", "success")
OTHERS = "(others)"
_GROUPS = 100  # of one kind, of the most turns; a data set may have a tool a line
_AT_ONCE = 2048  # questions that are in memory; a server has idle places only at their end
_BATCHED = 256  # the same where answers depend on their batch: a killed run repeats all of them
_PAIRS = 256  # of texts whose cosines are asked for at once
_SERVER = "a server's answer has no probabilities of the real observation's tokens; --model measures them"
_OF_TOKENS = "the count is of tokens"
_REASONS = "the model is trained to reason first, so that the real observation alone has no probability"


class Cosines:
    """The cosines of predicted and real texts as a `Model`, so that `Answers` keeps them, too. A text that the server refuses has
    none: it is a failure, not a cosine of 0.

    Args:
        reward: a score for each prediction and target, such as `EmbeddingReward`, whose `figures` say what was refused.
        name: of the model behind it.
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
        """Answer conversations of a real and a predicted text with their cosine."""
        real, predicted = ([messages[place]["content"] for messages in conversations] for place in (0, 1))
        values = self._reward(predicted, real)
        alone = self._refused()  # some of them were refused: which ones, they say one by one
        for index, value in enumerate(values):
            if alone:
                (value,) = self._reward([predicted[index]], [real[index]])
            keep(index, Answer("", failure="refused") if alone and self._refused() else Answer(repr(float(value))))

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
    """Ask for the observation of every turn, and compare.

    Args:
        items: trajectories, or transitions for kinds that are made of these.
        answers: of the model, at temperature 0.
        prompts: those that the model was trained with, or any for a model that was not.
        kind: one of `samples.KINDS` with prompts; says what a question is.
        world_context: what of the state is shown (`trajectories.hidden`). None: as the kind is trained.
        contexts: hidden contexts by hand, which fill those of the items.
        demonstrations: for few-shot prompts.
        embedding: measures the cosine of what is written and what came, too.
        limit: the first so many trajectories.
        seed: of the prompts' variants, as in `samples`, and of the intervals.
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
    tag = "" if kind_of(kind).of == "dialogues" else prompts.tag
    return measure(
        asked,
        answers,
        _Likelihood(answers),
        prompts,
        tag,
        embedding=embedding,
        settings={
            "kind": kind,
            "prompts": prompts.name,
            "world_context": as_json(hidden),
            "contexts": "" if contexts is None else contexts.digest,
            "shots": demonstrations.shots if demonstrations else 0,
            "demonstrations": demonstrations.source if demonstrations else "",
            "limit": limit,
        },
        left_out=left_out,
        seed=seed,
        subject=subject,
        data=data,
        folder=folder,
    )


class Likelihood(Protocol):
    """The probabilities of the real observations' tokens."""

    def __call__(self, episode: Episode) -> list[TokenScores | None]:
        """The scores of each case."""
        ...

    @property
    def note(self) -> str:
        """Why some or all turns have none; "" if all have."""
        ...


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
        asked: episodes; they are read once.
        prompts: those of the questions; None: an answer is the observation and nothing else.
        tag: in which the prediction stands in an answer.
        settings: what the questions depend on, beside the seed and the models.
        left_out: turns without a case, by reason; looked at when all episodes are read.
    """
    tally = _Tally(seed)
    cosines = Answers(embedding, folder and folder / "embeddings.jsonl") if embedding else None
    scorer = _Scorer(prompts, tag, cosines)
    rows = _rows(asked, answers, scorer, likelihood, tally, seed)
    if folder is None:
        for _ in rows:
            pass
    else:
        write_rows(rows, folder)
    failures = Counter(filter(None, tally.failures))
    notes = [f"{count:,} turns are left out: {reason}" for reason, count in left_out.items() if count]
    if scorer.without_cosine:
        notes.append(f"embedding: {scorer.without_cosine:,} texts have no cosine, since their server refused them")
    if likelihood.note:
        notes.append(f"nll: {likelihood.note}")
    if calls := sum(failures[kind] for kind in KINDS):
        notes.append(f"{calls:,} calls failed; the next run into the same folder asks them again")
    evaluation = Evaluation(
        name=NAME,
        subject=subject,
        data=data,
        settings={
            **settings,
            "seed": seed,
            "model": answers.settings,
            "embedding": embedding.settings["embedding"] if embedding else "",
        },
        measures=list(tally.measures(likelihood.note)),
        failures=dict(sorted(failures.items())),
        notes=notes,
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
    """The rows of `rows.jsonl`, which are counted as they come."""
    with answers:  # its file is read once, not for each chunk
        for chunk in _chunks(asked, _BATCHED if answers.model.batched else _AT_ONCE):
            cases = list(chain.from_iterable(episode.cases for episode in chunk))
            replies = answers([case.messages for case in cases], seed=seed, at_once=len(cases))
            tokens = chain.from_iterable(likelihood(episode) for episode in chunk)
            for case, row, of_tokens in zip(cases, scorer(cases, replies), tokens, strict=True):
                tally.add(case, row, of_tokens)
                scores = {
                    name: value for name, value in row["scores"].items() if value is not None and not math.isnan(value)
                }
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
    """Whole episodes, together of at least `size` cases."""
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
    """Compares answers with what came: `predicted`, `scores` and `failure` of each row."""

    def __init__(self, prompts: Prompts | None, tag: str, cosines: Answers | None) -> None:
        self._prompts, self._tag, self._cosines = prompts, tag, cosines
        self._exact, self._rouge = ExactReward(), RougeReward()
        self._flagged = prompts is not None and (prompts.success or bool(prompts.completion))
        self.without_cosine = 0

    def __call__(self, cases: Sequence[Case], answers: Sequence[Answer]) -> list[dict[str, Any]]:
        rows = [self._row(case, answer) for case, answer in zip(cases, answers, strict=True)]
        if self._cosines is not None:
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
                value = math.nan if cosine.failure else float(cosine.text)
                rows[place]["scores"]["embedding"] = value
                self.without_cosine += math.isnan(value)
        return rows

    def _row(self, case: Case, answer: Answer) -> dict[str, Any]:
        prediction = answer.text if self._prompts is None else extract(answer.text, self._tag).prediction
        failure = answer.trouble or ("no prediction" if prediction is None else "")
        if failure == "empty" and not case.real.strip():
            failure = ""  # it foresees that nothing is observed
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
        predicted = answer.text if prediction is None else prediction
        return {"predicted": predicted, "scores": scores, "failure": failure}

    def _parts(self, text: str) -> tuple[str, bool | None]:
        """A text without what it says of success, and that."""
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
    """The F1 of the keys of two JSON values, each with its place; the items of a list are one place.

    None if the real text is no JSON with keys. A prediction that is no JSON gets 0.
    """
    value = parse(real)
    places: dict[tuple[int, str | None], int] = {}
    observed = set() if value is NO_JSON else _keys(value, places)
    if not observed:
        return None
    other = parse(predicted)
    keys = set() if other is NO_JSON else _keys(other, places)
    return 2 * len(keys & observed) / (len(keys) + len(observed))


def _keys(value: Any, places: dict[tuple[int, str | None], int]) -> set[int]:
    """The numbers of a value's keys. A place has the number that `places` gives to the one around it and its key."""
    keys, parts = set(), [(value, 0)]
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
    """The probabilities of the real observations' tokens, of a model in this process."""

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
        """The scores of each case, with the tokens that end an answer, as in training."""
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
        """Why some or all turns have none; "" if all have."""
        return self._why or (_REASONS if self._reasons else "")


class _Tally:
    """What the rows sum up to. Lists have an item a row."""

    def __init__(self, seed: int) -> None:
        self.failures: list[str] = []
        self._seed = seed
        self._trajectories: list[str] = []
        self._groups: dict[str, list[str]] = {by: [] for by in GROUPS}
        self._scores: dict[str, list[float | None]] = {name: [] for name in SCORES}
        self._tokens: list[tuple[float, int]] = []  # the sum of their NLL, and how many there are
        self._bins: dict[str, Tensor] = {}  # by trajectory

    def add(self, case: Case, row: dict[str, Any], tokens: TokenScores | None) -> None:
        self.failures.append(row["failure"])
        self._trajectories.append(case.trajectory)
        flag = row["scores"]["success_flag"]
        groups = {
            "turn": str(case.turn),
            "tool": case.tool,
            "observer": case.observer,
            "error": "error" if case.error else "no error",
            "category": case.category,
            "success": "" if flag is None else "done" if case.won else "not done",
        }
        for by, names in self._groups.items():
            names.append(groups[by])
        for name, scores in self._scores.items():
            scores.append(row["scores"].get(name))
        self._tokens.append((0.0, 0) if tokens is None else (float(tokens.nll.sum()), len(tokens.nll)))
        if tokens is not None:
            none = torch.zeros(BINS, 3, dtype=torch.float64)
            self._bins[case.trajectory] = self._bins.get(case.trajectory, none) + tokens.bins()

    def measures(self, note: str) -> Iterator[Measure]:
        """Of all rows, then of each group, then the tokens' accuracy by confidence.

        Args:
            note: why tokens have no likelihood.
        """
        every = range(len(self.failures))
        names = [name for name, scores in self._scores.items() if any(score is not None for score in scores)]
        for name in names or ["exact"]:
            yield self._mean(name, every)
        yield self._nll(every, note=note)
        bins = torch.stack([*self._bins.values()]) if self._bins else torch.zeros(1, BINS, 3)
        tokens = int(bins[..., 0].sum())
        error = calibration_error(bins.sum(0)) if tokens else None
        yield Measure("calibration_error", error, "share", tokens, with_failed=error, note=note or _OF_TOKENS)
        for by in GROUPS:
            for group, rows in self._grouped(by):
                for name in GROUPED:
                    if any(self._scores[name][row] is not None for row in rows):
                        yield self._mean(name, rows, by, group)
                if any(self._tokens[row][1] for row in rows):
                    yield self._nll(rows, by, group)
        for place in range(BINS if tokens else 0):
            counts, confidence, right = (bins[:, place, column].tolist() for column in range(3))
            if count := int(sum(counts)):
                low, high = interval(right, counts, list(self._bins), seed=self._seed)
                accuracy = sum(right) / count
                yield Measure(
                    "token_accuracy",
                    accuracy,
                    "share",
                    count,
                    "confidence",
                    f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}",
                    low,
                    high,
                    with_failed=accuracy,
                    note=f"at a mean confidence of {sum(confidence) / count:.3f}; {_OF_TOKENS}",
                )

    def _mean(self, name: str, rows: Sequence[int], by: str = "", group: str = "") -> Measure:
        scores = self._scores[name]
        scored = [(row, score) for row in rows if (score := scores[row]) is not None]
        # of a text that the embedding server refused, NaN
        whole = [(row, score) for row, score in scored if not self.failures[row] and not math.isnan(score)]
        values = [score for _, score in whole]
        low, high = interval(values, [1] * len(values), [self._trajectories[row] for row, _ in whole], seed=self._seed)
        return Measure(
            name,
            sum(values) / len(values) if values else None,
            "share",
            len(values),
            by,
            group,
            low,
            high,
            failed=len(scored) - len(whole),
            with_failed=sum(values) / len(scored) if scored else None,
            note="" if values else "no turn with an answer" if scored else "no turn to measure it on",
        )

    def _nll(self, rows: Sequence[int], by: str = "", group: str = "", note: str = "") -> Measure:
        measured = [row for row in rows if self._tokens[row][1]]
        sums, counts = [self._tokens[row][0] for row in measured], [self._tokens[row][1] for row in measured]
        low, high = interval(sums, counts, [self._trajectories[row] for row in measured], seed=self._seed)
        return Measure(
            "nll",
            sum(sums) / sum(counts) if measured else None,
            "nats",
            len(measured),
            by,
            group,
            low,
            high,
            failed=len(rows) - len(measured) if measured else 0,
            note=note,
        )

    def _grouped(self, by: str) -> Iterator[tuple[str, list[int]]]:
        """The rows of each group, in order; those beyond the largest `_GROUPS` together."""
        groups: dict[str, list[int]] = {}
        for row, name in enumerate(self._groups[by]):
            if name:
                groups.setdefault(name, []).append(row)
        if len(groups) > _GROUPS:
            largest = set(sorted(groups, key=lambda name: -len(groups[name]))[:_GROUPS])
            rest = sorted(chain.from_iterable(rows for name, rows in groups.items() if name not in largest))
            groups = {name: rows for name, rows in groups.items() if name in largest} | {OTHERS: rest}
        order: Callable[[str], Any] = (lambda name: (len(name), name)) if by == "turn" else str
        yield from sorted(groups.items(), key=lambda item: order(item[0]))
