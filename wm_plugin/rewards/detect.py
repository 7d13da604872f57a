"""Signs that a prediction speaks for itself: praise, words for a judge, and copies of the prompt.

Qwen-AgentWorld's policy learned to write that all went well and all fields are right (section 4.2); copying the prompt is what a
model does that has nothing to predict. These are figures to watch first. As a penalty they are one more thing to optimise
against: rules and matches cannot be talked to at all.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.base import check_texts, mean
from wm_plugin.rewards.delimit import neutral
from wm_plugin.rewards.extract import check_tag, extract
from wm_plugin.rewards.make import Reward, make
from wm_plugin.rewards.rubric import DIMENSIONS

_SHINGLE = 8  # words in a row that nobody writes twice by chance
_GOOD = (
    r"(?:correct|accurate|faithful|perfect|realistic|excellent|exact|flawless|authentic|high[- ]quality|complete|valid)"
)
_WELL = r"(?:perfectly|exactly|fully|faithfully|accurately|precisely|correctly|completely)"
_SELF = r"(?:prediction|predicted|output|response|answer|observation|simulation|reproduction)"
_JUDGE = r"(?:judge|grader|evaluator|assessor|scorer|examiner|reward model|verifier)s?"
# Each over a few words, so that a search is linear.
_PRAISE = re.compile(
    rf"\b(?:this|the|my|our|above|here is an?|an?) (?:[\w-]+ ){{0,2}}{_SELF} (?:\w+ ){{0,2}}(?:is|are|was|were|remains)"
    rf" (?:\w+ ){{0,2}}{_GOOD}\w*"
    rf"|\b(?:all|every|each) (?:\w+ ){{0,3}}(?:fields?|values?|details?|keys?|parameters?|requirements?)"
    rf" (?:\w+ ){{0,3}}{_GOOD}\w*"
    r"|\bwith (?:all|every) (?:\w+ ){0,3}(?:correctly|properly|accurately) \w+"
    rf"|\b{_WELL} (?:match\w*|reflect\w*|reproduc\w*|mirror\w*|simulat\w*|predict\w*|consistent with|identical to|faithful to)"
    r"|\b(?:highest|utmost|excellent|outstanding|exceptional|high|perfect) (?:fidelity|realism|factuality)\b"
    r"|\b(?:no|without|free of|zero) (?:\w+ ){0,2}(?:mistakes|discrepanc\w+|hallucinat\w+|fabricat\w+|inconsistenc\w+)"
    r"|\b(?:verified|confirmed|guaranteed|certified) (?:\w+ ){0,2}(?:correct|accurate|ground truth|identical)\b"
)
_DIMENSION = rf'"(?:{"|".join(DIMENSIONS)})"'
_FOR_A_JUDGE = re.compile(
    r"\b(?:dear|attention|hello|note (?:to|for)|message (?:to|for)|instructions? (?:to|for)|reminder to|as)"
    rf" (?:the |an? |our )?(?:\w+ )?{_JUDGE}\b"
    rf"|\b{_JUDGE} ?(?:note|instructions?|override|:)"
    r"|\b(?:ignore|disregard|forget|override|skip) (?:\w+ ){0,4}(?:instructions?|rubric|criteria|guidelines|rules)\b"
    r"|\b(?:give|assign|award|deserves?|merits?|earns?|warrants?|return|output) (?:\w+ ){0,5}"
    r"(?:full|maximum|highest|perfect|top|best) (?:possible )?(?:scores?|marks?|points?|ratings?|grades?|rewards?)\b"
    r"|\b(?:should|must|please|kindly) (?:\w+ ){0,3}(?:scored?|rated?|graded?|judged?)"
    r" (?:\w+ ){0,3}(?:[1-5]|10|25|100|full|high\w*)\b"
    r"|\bscores?(?: of)? [1-5] (?:for|on|in) (?:each|every|all)\b"
    r"|<\s{0,3}/?\s{0,3}(?:evaluation|verdict|judge?ment)\b"
    rf'|{_DIMENSION}\s{{0,3}}:\s{{0,3}}"?[1-5]"?\s{{0,3}},\s{{0,3}}{_DIMENSION}'
)
# Letters of other alphabets that look like Latin ones.
_LOOKS = str.maketrans("аеорсухіјѕԁһԛԝАВЕКМНОРСТХαοερτυνικ", "aeopcyxijsdhqwABEKMHOPCTXaoeptuvik")
_WORD = re.compile(r"\w+")


def self_praise(prediction: str, target: str = "") -> list[str]:
    """Phrases in which a prediction speaks of its own quality, and the observation does not. As they were read: normalised."""
    return _only(_PRAISE, prediction, target)


def judge_talk(prediction: str, target: str = "") -> list[str]:
    """Phrases for a judge, forged verdicts, and marks of chat templates that the observation does not have."""
    found = _only(_FOR_A_JUDGE, prediction, target)
    return found + ["marks"] * (neutral(prediction)[1] > neutral(target)[1])


def echo(prediction: str, context: str, target: str = "") -> float:
    """The share of a prediction's words that stand in runs of 8 which the context has and the observation has not.

    What stays the same in the environment is in the observation too, and is no echo. A shorter prediction is one run; under 3
    words it is none.
    """
    said = _words(prediction)
    length = min(_SHINGLE, len(said))
    if length < 3:
        return 0.0
    copied = _runs(_words(context), length) - _runs(_words(target), length)
    covered = [False] * len(said)
    for start in range(len(said) - length + 1):
        if tuple(said[start : start + length]) in copied:
            covered[start : start + length] = [True] * length
    return sum(covered) / len(said)


class GuardedReward:
    """A reward with an eye on predictions that speak for themselves.

    Columns: `context`, text or messages: what the prediction was made from, for `echo`. All columns go on to the reward.

    Args:
        reward: a reward, its name, or {"path": name or package.module:Name, "kwargs": {...}}. It has no tag of its own.
        praise: the share of its reward that a prediction loses which praises itself or speaks to a judge; 0 only counts.
        echo: the share that is lost for a prediction that is nothing but a copy, in proportion; 0 only counts.
        tag: takes predictions out of whole outputs, see `TextReward`.

    Attributes:
        figures: the reward's, and `self_praise` and `judge_talk`, the shares of predictions with either, and `echo`, the mean.
    """

    def __init__(
        self,
        reward: Reward | str | Mapping[str, Any],
        *,
        praise: float = 0.0,
        echo: float = 0.0,
        tag: str | None = None,
    ) -> None:
        check_tag(tag)
        for name, value in (("praise", praise), ("echo", echo)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; write the share of the reward that is lost, from 0 to 1")
        self.reward = make(reward, field="reward")
        if getattr(self.reward, "tag", None) is not None:
            raise UserError("reward has a tag; write it beside the reward, as the guard's")
        self.praise, self.echo, self.tag = praise, echo, tag
        self.figures: dict[str, float] = {}
        if hasattr(self.reward, "call_async"):  # a judge: hosts wait for many at the same time
            self.call_async = self._call_async

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        given = self._extracted(predictions, targets)
        return self._guarded(given, targets, self.reward(given, targets, **columns), columns)

    async def _call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        given = self._extracted(predictions, targets)
        reward: Any = self.reward
        return self._guarded(given, targets, await reward.call_async(given, targets, **columns), columns)

    def _extracted(self, predictions: Sequence[str | None], targets: Sequence[str]) -> Sequence[str | None]:
        check_texts(predictions, targets)
        if self.tag is None:
            return predictions
        return [None if text is None else extract(text, self.tag).prediction for text in predictions]

    def _guarded(
        self,
        given: Sequence[str | None],
        targets: Sequence[str],
        scores: Sequence[float],
        columns: Mapping[str, Any],
    ) -> list[float]:
        scores = list(scores)
        contexts = columns.get("context") or [""] * len(targets)
        noted: dict[str, list[float]] = {"self_praise": [], "judge_talk": [], "echo": []}
        for row, (text, target) in enumerate(zip(given, targets, strict=True)):
            if text is None:
                continue
            praised, talked = bool(self_praise(text, target)), bool(judge_talk(text, target))
            copied = echo(text, written(contexts[row]), target)
            for name, value in (("self_praise", praised), ("judge_talk", talked), ("echo", copied)):
                noted[name].append(float(value))
            scores[row] *= (1 - self.praise * (praised or talked)) * (1 - self.echo * copied)
        self.figures = {**getattr(self.reward, "figures", {}), **{name: mean(values) for name, values in noted.items()}}
        return scores


def written(value: Any) -> str:
    """A prompt as text: text, or the contents of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return "\n".join(str(item.get("content") or "") for item in value if isinstance(item, Mapping))
    return ""


def _only(pattern: re.Pattern[str], prediction: str, target: str) -> list[str]:
    real = _plain(target)
    return [found[0] for found in pattern.finditer(_plain(prediction)) if found[0] not in real]


def _plain(text: str) -> str:
    """Without what hides words: other widths and alphabets, unseen characters, case, runs of white space."""
    text = unicodedata.normalize("NFKC", text)
    text = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn"))
    return " ".join(text.translate(_LOOKS).casefold().split())


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
