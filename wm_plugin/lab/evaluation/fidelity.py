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
from typing import Any

import torch

from wm_plugin.client.answers import Answer, Answers, Conversation, LocalModel
from wm_plugin.client.server import KINDS
from wm_plugin.data.contexts import Contexts
from wm_plugin.data.hidden import Shown, as_json
from wm_plugin.data.prompts import COMPLETED, Prompts
from wm_plugin.data.readers.word2world import SUCCESS
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.cases import Case, Demonstrations, Episode, Item, episodes, kind_of
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, mean_of, ratio, write_result, write_rows
from wm_plugin.lab.evaluation.one_step import BINS, TokenScores, calibration_error, token_scores
from wm_plugin.rewards.exact import ExactReward
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.json_match import NO_JSON, parse
from wm_plugin.rewards.rouge import RougeReward
from wm_plugin.rewards.words import word_f1

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
_EXACT, _ROUGE = ExactReward(), RougeReward()

# The scores of the real observations' tokens, one for each case; or why there are none.
Likelihood = Callable[[Episode], Sequence[TokenScores] | str]


class Cosines:
    """The cosines of predicted and real texts as a `Model`, so that `Answers` keeps them.

    A text that the server refuses is a failure, not a cosine of 0.

    Args:
        reward: scores each prediction and target, such as `EmbeddingReward`, whose `figures` say what was refused.
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
    limit: int | None = None,
    seed: int = 0,
    **more: Any,
) -> Evaluation:
    """Ask for every turn's observation, and compare.

    Args:
        items: trajectories, or transitions for kinds that are made of these.
        kind: one of `data.kinds.KINDS` with prompts; decides what a question is.
        world_context: the parts of the hidden state that are shown. None: as the kind is trained.
        seed: of the prompts' variants and of the intervals.
        more: `embedding`, `subject`, `data` and `folder`, as in `measure`.
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
    tag = "" if kind_of(kind).of == "dialogues" else prompts.tag
    return measure(asked, answers, _likelihood(answers), prompts, tag, settings, left_out, seed=seed, **more)


def _likelihood(answers: Answers) -> Likelihood:
    """Score the real observations by a model in this process, with the tokens that end an answer, as in training."""
    if not isinstance(answers.model, LocalModel):
        return lambda _: _SERVER
    predictor = answers.model.predictor
    try:
        tokenise = Tokeniser(predictor.tokenizer)
    except UserError as error:
        reason = str(error)
        return lambda _: reason

    def likelihood(episode: Episode) -> list[TokenScores] | str:
        if episode.sample is None:
            return _REASONS
        try:
            tokens = tokenise(episode.sample)
        except UserError as error:
            return str(error)
        scores = token_scores(predictor.model, tokens.ids, tokens.mask) if any(tokens.mask) else []
        return scores if len(scores) == len(episode.cases) else "an observation has no token"

    return likelihood


def measure(
    asked: Iterable[Episode],
    answers: Answers,
    likelihood: Likelihood,
    prompts: Prompts | None,
    tag: str,
    settings: Mapping[str, Any],
    left_out: Mapping[str, int],
    *,
    embedding: Cosines | None = None,
    seed: int = 0,
    subject: str = "",
    data: str = "",
    folder: Path | None = None,
) -> Evaluation:
    """Ask about every case, compare, and count, whatever a question is.

    Args:
        prompts: the questions' prompts; None: an answer is the observation and nothing else.
        tag: the tag around the prediction in an answer.
        settings: what the questions depend on, beside the seed and the models.
        left_out: turns without a case, by reason; read after all episodes.
        folder: gets `rows.jsonl` and `result.json`, and keeps cosines in `embeddings.jsonl`.
    """
    cosines = Answers(embedding, folder and folder / "embeddings.jsonl") if embedding else None
    scorer, counted, silent = _Scorer(prompts, tag, cosines), list[_Row](), dict[str, None]()
    rows = _rows(asked, answers, scorer, likelihood, seed, counted, silent)
    if folder is None:
        for _ in rows:
            pass
    else:
        write_rows(rows, folder)
    failures = Counter(row.failure for row in counted if row.failure)
    notes = [f"{count:,} turns are left out: {reason}" for reason, count in left_out.items() if count]
    if scorer.without_cosine:
        notes.append(f"embedding: {scorer.without_cosine:,} texts have no cosine, since their server refused them")
    unlikely = next(iter(silent), "")
    if unlikely:
        notes.append(f"nll: {unlikely}")
    if calls := sum(failures[kind] for kind in KINDS):
        notes.append(f"{calls:,} calls failed; the next run into the same folder asks them again")
    models = {"model": answers.settings, "embedding": embedding.settings["embedding"] if embedding else ""}
    evaluation = Evaluation(
        NAME,
        subject,
        data,
        {**settings, "seed": seed, **models},
        list(_measures(counted, unlikely, seed)),
        dict(sorted(failures.items())),
        notes,
    )
    if folder is not None:
        write_result(evaluation, folder)
    return evaluation


@dataclass(frozen=True)
class _Row:
    """What is counted of a turn."""

    trajectory: str
    failure: str
    scores: Mapping[str, float | None]
    groups: Mapping[str, str]
    nll: float  # of its `tokens`
    tokens: int
    bins: torch.Tensor | None  # as from `TokenScores.bins`


def _rows(
    asked: Iterable[Episode],
    answers: Answers,
    scorer: "_Scorer",
    likelihood: Likelihood,
    seed: int,
    counted: list[_Row],
    silent: dict[str, None],
) -> Iterator[dict[str, Any]]:
    """Make the rows of `rows.jsonl`; add what is counted of them, and why tokens have no likelihood."""
    with answers:  # its file is read once, not for each chunk
        for chunk in _chunks(asked, _BATCHED if answers.model.batched else _AT_ONCE):
            cases = list(chain.from_iterable(episode.cases for episode in chunk))
            replies = answers([case.messages for case in cases], seed=seed, at_once=len(cases))
            tokens: list[TokenScores | None] = []
            for episode in chunk:
                found = likelihood(episode)
                if isinstance(found, str):
                    silent[found] = None
                    tokens += [None] * len(episode.cases)
                else:
                    tokens += found
            for case, row, of_tokens in zip(cases, scorer(cases, replies), tokens, strict=True):
                counted.append(_counted(case, row, of_tokens))
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


def _counted(case: Case, row: Mapping[str, Any], tokens: TokenScores | None) -> _Row:
    flag = row["scores"]["success_flag"]
    groups = {
        "turn": str(case.turn),
        "tool": case.tool,
        "observer": case.observer,
        "error": "error" if case.error else "no error",
        "category": case.category,
        "success": "" if flag is None else "done" if case.won else "not done",
    }
    found = (0.0, 0, None) if tokens is None else (float(tokens.nll.sum()), len(tokens.nll), tokens.bins())
    return _Row(case.trajectory, row["failure"], row["scores"], groups, *found)


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
        self._flagged = prompts is not None and (prompts.success or bool(prompts.completion))
        self.without_cosine = 0

    def __call__(self, cases: Sequence[Case], answers: Sequence[Answer]) -> list[dict[str, Any]]:
        rows = [self._row(case, answer) for case, answer in zip(cases, answers, strict=True)]
        if self._cosines is not None:
            self._add_cosines(self._cosines, cases, rows)
        return rows

    def _add_cosines(self, cosines: Answers, cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> None:
        pairs: list[Conversation] = []
        for case, row in zip(cases, rows, strict=True):
            row["scores"]["embedding"] = 0.0
            if not row["failure"]:
                real, predicted = self._parts(case.real)[0], self._parts(row["predicted"])[0]
                pairs.append([{"role": "user", "content": real}, {"role": "assistant", "content": predicted}])
        whole = [row for row in rows if not row["failure"]]
        for row, cosine in zip(whole, cosines(pairs, at_once=_PAIRS), strict=True):
            row["scores"]["embedding"] = math.nan if cosine.failure else float(cosine.text)
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
            "exact": float(right and _EXACT([prediction or ""], [case.real])[0] == 1),
            "text": float(right and text == real),
            "success_flag": float(right and flag == really) if self._flagged and case.known else None,
            "word_f1": word_f1(text, real) if right else 0.0,
            "rouge": _ROUGE([text], [real])[0] if right else 0.0,
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


def _measures(rows: Sequence[_Row], unlikely: str, seed: int) -> Iterator[Measure]:
    """Measure all rows, then each group, then the tokens' accuracy by confidence."""
    names = [name for name in SCORES if any(row.scores.get(name) is not None for row in rows)]
    for name in names or ["exact"]:
        yield _mean(name, rows, seed)
    yield _nll(rows, seed, note=unlikely)
    likely = [(row, row.bins) for row in rows if row.bins is not None]
    bins = torch.stack([one for _, one in likely]) if likely else torch.zeros(1, BINS, 3)
    tokens = int(bins[..., 0].sum())
    error = calibration_error(bins.sum(0)) if tokens else None
    yield Measure("calibration_error", error, "share", tokens, with_failed=error, note=unlikely or _OF_TOKENS)
    for by in GROUPS:
        for group, members in _grouped(rows, by):
            for name in GROUPED:
                if any(row.scores.get(name) is not None for row in members):
                    yield _mean(name, members, seed, by=by, group=group)
            if any(row.tokens for row in members):
                yield _nll(members, seed, by=by, group=group)
    for place in range(BINS if tokens else 0):
        counts, confidence, right = (bins[:, place, column].tolist() for column in range(3))
        if count := int(sum(counts)):
            remark = f"at a mean confidence of {sum(confidence) / count:.3f}; {_OF_TOKENS}"
            of: dict[str, Any] = {"by": "confidence", "group": f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}"}
            clusters = [row.trajectory for row, _ in likely]
            yield ratio("token_accuracy", "share", right, counts, clusters, note=remark, seed=seed, **of)


def _mean(name: str, rows: Sequence[_Row], seed: int, **group: Any) -> Measure:
    scored = [(score, row) for row in rows if (score := row.scores.get(name)) is not None]
    # NaN where the embedding server refused a text
    values = [(None if row.failure or math.isnan(score) else score, row.trajectory) for score, row in scored]
    note = "" if any(value is not None for value, _ in values) else "no turn with an answer"
    return mean_of(name, "share", values, note=note if scored else "no turn to measure it on", seed=seed, **group)


def _nll(rows: Sequence[_Row], seed: int, **more: Any) -> Measure:
    kept = [row for row in rows if row.tokens]
    sums, counts, clusters = [r.nll for r in kept], [r.tokens for r in kept], [r.trajectory for r in kept]
    made = ratio("nll", "nats", sums, counts, clusters, seed=seed, **more)
    return replace(made, count=len(kept), failed=len(rows) - len(kept) if kept else 0, with_failed=None)


def _grouped(rows: Sequence[_Row], by: str) -> list[tuple[str, list[_Row]]]:
    """Return each group's rows, in order; those beyond the largest `_GROUPS` together."""
    sizes = Counter(row.groups[by] for row in rows if row.groups[by])
    largest = {name for name, _ in sizes.most_common(_GROUPS)}
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        if name := row.groups[by]:
            groups.setdefault(name if name in largest else OTHERS, []).append(row)
    return sorted(groups.items(), key=lambda item: (len(item[0]) if by == "turn" else 0, item[0]))
