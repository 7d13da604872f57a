"""Scores predictions against the real observations, by any reward."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from wm_plugin.data.errors import RowError
from wm_plugin.data.prompts import Prompts, target
from wm_plugin.data.render import reward_columns
from wm_plugin.data.schema import Transition
from wm_plugin.errors import UserError
from wm_plugin.options import Options, Whole, option
from wm_plugin.rewards.extract import extract
from wm_plugin.untrusted import loads

Reward = Callable[..., Sequence[float | None]]
AT_ONCE = 256  # transitions in one call of a reward
NO_MODEL = (
    "comparing texts by their embeddings needs a model: write --embedding-model PATH (the paper has Qwen3-Embedding-8B), "
    "or --reward rouge"
)


class ScoringOptions(Options):
    """What the scoring of predictions needs beside the reward's name."""

    embedding_model: str | None = option("The embedding model, for the rewards that have one.", default=None)
    embedding_server: str | None = option(
        "A server that has the embedding model (default: load it in this process).", default=None
    )
    seed: Whole = option("Seed of all draws.", default=0)


def score(
    predictions: Iterable[tuple[Transition, list[str]]], reward: Reward, prompts: Prompts
) -> Iterator[tuple[Transition, list[str], list[float | None]]]:
    """Yield each transition with its outputs and their scores, in order.

    A score is None if the output holds no prediction, or if the reward gives None or NaN. The reward gets the prediction without
    the thought before it.
    """
    rest = iter(predictions)
    while chunk := list(islice(rest, AT_ONCE)):
        extracted = [
            (row, place, prediction)
            for row, (_, outputs) in enumerate(chunk)
            for place, output in enumerate(outputs)
            if (prediction := extract(output, prompts.tag).prediction) is not None
        ]
        texts = [(row, prediction) for row, _, prediction in extracted]
        values = rewarded(reward, [transition for transition, _ in chunk], texts, prompts)
        scores: list[list[float | None]] = [[None] * len(outputs) for _, outputs in chunk]
        for (row, place, _), value in zip(extracted, values, strict=True):
            scores[row][place] = value
        for (transition, outputs), row_scores in zip(chunk, scores, strict=True):
            yield transition, outputs, row_scores


def rewarded(
    reward: Reward, transitions: Sequence[Transition], texts: Sequence[tuple[int, str]], prompts: Prompts, **more: Any
) -> list[float | None]:
    """Return a reward's value of each text, or None.

    Its columns are `observer`, `tool`, `task_id`, those of `reward_columns`, and `more`.
    """
    if not texts:
        return []
    truths = [truth(transition, prompts) for transition in transitions]
    columns = [
        {
            "observer": transition.observation.kind,
            "tool": transition.observation.tool or "",
            "task_id": transition.task_id,
            **reward_columns(transition, prompts.domain),
        }
        for transition in transitions
    ]
    by_name = {name: [columns[row][name] for row, _ in texts] for name in columns[0]}
    values = reward([text for _, text in texts], [truths[row] for row, _ in texts], **by_name, **more)
    if len(values) != len(texts):
        raise UserError(f"the reward gave {len(values)} values for {len(texts)} predictions; it must give one each")
    return [None if value is None or math.isnan(value) else float(value) for value in values]


def truth(transition: Transition, prompts: Prompts) -> str:
    """Return the observation in the form of a prediction: extracted from the label that the prompts ask for."""
    try:
        label = extract(target(transition.observation, prompts), prompts.tag).prediction
    except RowError:  # the observation holds the tags themselves
        label = None
    return transition.observation.text if label is None else label


def read_arguments(text: str, field: str) -> dict[str, Any]:
    """Read a JSON object of arguments."""
    try:
        arguments = loads(text, strict=True)
    except ValueError as error:
        raise UserError(f"{field} is no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise UserError(f"{field} is {text:.100}; write an object of arguments by name")
    return arguments


def reward_arguments(name: str, text: str, field: str) -> dict[str, Any]:
    """Read the arguments of a reward from JSON. A judge that fails gives no score, where a trainer counts the lowest one."""
    from wm_plugin.rewards import REWARDS
    from wm_plugin.rewards.judge import JudgedReward

    arguments, reward = read_arguments(text, field), REWARDS.get(name)
    judges = isinstance(reward, type) and issubclass(reward, JudgedReward)
    return {"failed": math.nan, "no_verdict": math.nan, **arguments} if judges else arguments


def real_valued(
    name: str,
    embedding_model: str | None = None,
    embedding_server: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Reward:
    """Make a reward by name, as a real-valued similarity: the cosine and the ROUGE score without threshold and rounding.

    `rwml` is ROUGE for tools' results and the cosine for everything else. The user's own reward is `package.module:NAME`.

    Args:
        arguments: of the reward as it is in trainers, which then is neither made real-valued nor given an embedding model.
    """
    from wm_plugin.rewards import REWARDS, EmbeddingReward, RougeReward
    from wm_plugin.rewards.make import make

    if arguments:
        return make({"path": name, "kwargs": arguments})
    if name in ("rwml", "embedding"):
        embedding = EmbeddingReward(embedding_model, base_url=embedding_server) if embedding_model else None
        if name == "rwml":
            return ByObserver(RougeReward(), embedding)
        if embedding is None:
            raise UserError(NO_MODEL)
        return embedding
    reward: Any = REWARDS.get(name)
    try:
        made: Reward = reward() if isinstance(reward, type) else reward
    except TypeError as error:
        raise UserError(
            f"{name} cannot be made without arguments ({error}): give them as JSON, or name one that is made, like "
            "package.module:MY_REWARD"
        ) from None
    return made


class ByObserver:
    """One reward for tools' results and another for the observations of users and environments."""

    def __init__(self, tools: Reward, others: Reward | None) -> None:
        self._tools, self._others = tools, others

    def __call__(self, predictions: list[str], targets: list[str], observer: list[str], **_: Any) -> list[float | None]:
        values: list[float | None] = [None] * len(predictions)
        for reward, of_tools in ((self._tools, True), (self._others, False)):
            chosen = [index for index, kind in enumerate(observer) if (kind == "tool") is of_tools]
            if not chosen:
                continue
            if reward is None:
                raise UserError(NO_MODEL)
            scores = reward([predictions[index] for index in chosen], [targets[index] for index in chosen])
            for index, value in zip(chosen, scores, strict=True):
                values[index] = value
        return values
