"""Signs of reward hacking in a prediction: self-praise, words addressed to a judge, and copies of the prompt.

Qwen-AgentWorld's policy learned to write that everything succeeded and every field is correct (section 4.2), and a model that
cannot predict copies its prompt. Watch these signs as metrics first: as a penalty they are one more target for the policy to
optimise against, while rules and matches cannot be persuaded at all.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.rewards.background import written
from wm_plugin.rewards.base import TaggedReward, mean
from wm_plugin.rewards.delimit import neutral
from wm_plugin.rewards.make import Reward, make
from wm_plugin.rewards.rubric import DIMENSIONS

_MAX_PHRASES = 100  # phrases of a prediction to look for in the observation
_RUN = 8  # this many equal words in a row are no coincidence
_GOOD = (
    r"(?:correct|accurate|faithful|perfect|realistic|excellent|exact|flawless|authentic|high[- ]quality|complete|valid)"
)
_WELL = r"(?:perfectly|exactly|fully|faithfully|accurately|precisely|correctly|completely)"
_SELF = r"(?:prediction|predicted|output|response|answer|observation|simulation|reproduction)"
_JUDGE = r"(?:judge|grader|evaluator|assessor|scorer|examiner|reward model|verifier)s?"
# Every repetition is bounded, so that the search is linear.
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
    """Return the normalised phrases in which a prediction praises itself, except those that the observation contains."""
    return _only(_PRAISE, prediction, target)


def judge_talk(prediction: str, target: str = "") -> list[str]:
    """Return phrases addressed to a judge and forged verdicts, except those that the observation contains.

    Ends with "marks" if the prediction has more chat-template tokens or judge's markers than the observation.
    """
    phrases = _only(_FOR_A_JUDGE, prediction, target)
    return phrases + ["marks"] * (neutral(prediction)[1] > neutral(target)[1])


def echo(prediction: str, context: str, target: str = "") -> float:
    """Return the share of a prediction's words in runs of 8 words that the context contains and the observation does not.

    Text that did not change in the environment is in the observation too, and does not count. A prediction of 3 to 7 words is
    one run; a shorter one has none.
    """
    words = _words(prediction)
    length = min(_RUN, len(words))
    if length < 3:
        return 0.0
    copied = _runs(_words(context), length) - _runs(_words(target), length)
    covered = [False] * len(words)
    for start in range(len(words) - length + 1):
        if tuple(words[start : start + length]) in copied:
            covered[start : start + length] = [True] * length
    return sum(covered) / len(words)


class GuardedReward(TaggedReward):
    """Another reward, with counts of and optional penalties for signs of reward hacking.

    Columns: `context`, the prompt as text or messages, for `echo`. The other reward gets all columns.

    Args:
        reward: a reward, its name, or {"path": name or package.module:Name, "kwargs": {...}}, without a tag of its own.
        praise: the share of the reward that a prediction loses if it praises itself or addresses a judge; 0 only counts. A
            negative reward falls by that share of its size.
        echo: the share that a prediction loses if all of it is a copy of the prompt, and in proportion if part of it is; 0 only
            counts.
        tag: see `TaggedReward`.

    Attributes:
        figures: the other reward's, and over predictions: the shares `self_praise` and `judge_talk`, and the mean `echo`.
    """

    def __init__(
        self,
        reward: Reward | str | Mapping[str, Any],
        *,
        praise: float = 0.0,
        echo: float = 0.0,
        tag: str | None = None,
    ) -> None:
        super().__init__(tag=tag)
        for name, value in (("praise", praise), ("echo", echo)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; write the share of the reward that is lost, from 0 to 1")
        self.reward = make(reward, field="reward")
        if getattr(self.reward, "tag", None) is not None:
            raise UserError("reward has a tag; write it beside the reward instead")
        self.praise, self.echo = praise, echo
        if hasattr(self.reward, "call_async"):  # hosts then call a guarded judge asynchronously too
            self.call_async = self._call_async

    def __call__(self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any) -> list[float]:
        texts = self.extracted(predictions, targets)
        return self._guarded(texts, targets, self.reward(texts, targets, **columns), columns)

    async def _call_async(
        self, predictions: Sequence[str | None], targets: Sequence[str], **columns: Any
    ) -> list[float]:
        texts = self.extracted(predictions, targets)
        reward: Any = self.reward
        return self._guarded(texts, targets, await reward.call_async(texts, targets, **columns), columns)

    def _guarded(
        self, texts: Sequence[str | None], targets: Sequence[str], scores: Sequence[float], columns: Mapping[str, Any]
    ) -> list[float]:
        scores = list(scores)
        contexts = columns.get("context")
        if contexts is None or not len(contexts):  # an array has no truth value
            contexts = [""] * len(targets)
        signs: dict[str, list[float]] = {"self_praise": [], "judge_talk": [], "echo": []}
        for row, (text, target) in enumerate(zip(texts, targets, strict=True)):
            if text is None:
                continue
            praise, talk = bool(self_praise(text, target)), bool(judge_talk(text, target))
            copy = echo(text, prompt_text(contexts[row]), target)
            for name, value in (("self_praise", praise), ("judge_talk", talk), ("echo", copy)):
                signs[name].append(float(value))
            share = (1 - self.praise * (praise or talk)) * (1 - self.echo * copy)
            # A negative reward gets worse by the same share; scaling it down would be a gain.
            scores[row] *= share if scores[row] >= 0 else 2 - share
        self.figures = {**getattr(self.reward, "figures", {}), **{name: mean(values) for name, values in signs.items()}}
        return scores


def prompt_text(value: Any) -> str:
    """Return a prompt's text: a text itself, or the contents of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        contents = [item.get("content") for item in value if isinstance(item, Mapping)]
        return "\n".join("" if content is None else written(content, str) for content in contents)
    return ""


def _only(pattern: re.Pattern[str], prediction: str, target: str) -> list[str]:
    plain = _plain(prediction)
    phrases = dict.fromkeys(match[0] for match in pattern.finditer(plain))
    if not phrases:
        return []
    real = _plain(target)
    seen = {match[0] for match in pattern.finditer(real)}
    unseen = [phrase for phrase in phrases if phrase not in seen]
    # The observation may have the words without a match of their own; looked for up to a limit, to stay linear.
    return [phrase for number, phrase in enumerate(unseen) if number >= _MAX_PHRASES or phrase not in real]


def _plain(text: str) -> str:
    """Normalise a text: other widths and alphabets, invisible characters, case, runs of white space."""
    if not text.isascii():
        # Also before: normalising sorts each run of marks, in quadratic time.
        text = _without_marks(unicodedata.normalize("NFKC", _without_marks(text)))
    return " ".join(text.translate(_LOOKS).casefold().split())


def _without_marks(text: str) -> str:
    return "".join(
        char for char in text if unicodedata.category(char) not in ("Cf", "Mn") and not unicodedata.combining(char)
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
