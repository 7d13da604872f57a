"""What a reward does not notice: predictions that are wrong by one thing, and rewordings that are right, on real observations.

A changed number, a negation, two exchanged names: to a tool's user that is another answer, but an embedding or a rounded ROUGE
often does not see it. Each change is made to the right prediction, where it can be made. For a reward with an embedding the
distances tell which threshold would separate right from wrong.
"""

import json
import math
import random
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from wm_plugin.data import files
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.audit import TOLERANCE, Pair, as_output, scores_of
from wm_plugin.options import Options, option
from wm_plugin.rewards import EmbeddingReward, RwmlReward
from wm_plugin.rewards.make import Reward
from wm_plugin.untrusted import loads

_LONG = 3000  # characters before the end of a long text: more than small embedding models see
_MOST_WORDS = 20_000  # of a text that is changed
_NAMED = 4  # changes that the verdict names, the worst ones
_SHOWN = 24  # characters on each side of a change
_NUMBER = re.compile(r"[0-9]+")
_WORD = re.compile(r"[^\W\d_]{4,40}")
_VERB = re.compile(
    r"\b(?:is|are|was|were|can|will|has|have|had|does|do|did|could|should|would|must)\b(?! not\b)", re.IGNORECASE
)
_DENIED = re.compile(r"\b(not|no|never) |n't\b", re.IGNORECASE)
_ARTICLE = re.compile(r"\b(?:the|an?) (?=\w)", re.IGNORECASE)
_SHORT_FORMS = (
    ("is not", "isn't"),
    ("are not", "aren't"),
    ("was not", "wasn't"),
    ("does not", "doesn't"),
    ("do not", "don't"),
    ("did not", "didn't"),
    ("cannot", "can't"),
    ("you are", "you're"),
    ("it is", "it's"),
    ("there is", "there's"),
)
_OPPOSITES = (
    "open closed|opened closed|on off|true false|yes no|success failure|succeeded failed|passed failed|empty full|left right"
    "|north south|east west|up down|upper lower|enabled disabled|active inactive|available unavailable|accepted rejected"
    "|approved denied|confirmed cancelled|allowed forbidden|increased decreased|more less|inside outside|before after|hot cold"
    "|locked unlocked|alive dead|valid invalid|found missing|first last|added removed|correct incorrect|with without|old new"
)
_OTHER = {a: b for pair in _OPPOSITES.split("|") for a, b in (pair.split(), tuple(reversed(pair.split())))}
_OPPOSITE = re.compile(rf"\b(?:{'|'.join(_OTHER)})\b", re.IGNORECASE)
_EMOJI = ("✅", "❌")


class Case(NamedTuple):
    """An observation, and a prediction of it."""

    target: str
    prediction: str
    pair: Pair


@dataclass(frozen=True)
class Change:
    """A way to change a pair's right prediction.

    `edit` gets the right prediction, and returns the changed one, or (the observation, the prediction), or None if it cannot be
    changed so.
    """

    name: str
    says: str
    wrong: bool
    edit: Callable[[str, Pair, random.Random], str | tuple[str, str] | None]

    def make(self, pair: Pair, generator: random.Random) -> tuple[str, str] | None:
        """Return the observation and the changed prediction."""
        made = self.edit(pair.right, pair, generator)
        return (pair.right, made) if isinstance(made, str) else made


@dataclass(frozen=True)
class Spot:
    """How a reward scores a change."""

    name: str
    says: str
    wrong: bool  # whether the change makes the prediction wrong
    cases: int  # in how many transitions it could be made, and the right prediction scores above an honest wrong one
    paid: float  # the share of these in which the changed prediction earns as much as the right one
    # of the embedding, if the reward has one; also of cases that another part of the reward scores
    distances: tuple[float, ...] = ()
    example: tuple[str, str] = ("", "")  # the place of the change in one of them, as observed and as predicted

    @property
    def ends(self) -> list[float] | None:
        """The lowest, median and highest distance."""
        return [min(self.distances), median(self.distances), max(self.distances)] if self.distances else None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, distances as lowest, median and highest."""
        return {**vars(self), "distances": self.ends, "example": list(self.example)}


@dataclass(frozen=True)
class Threshold:
    """The distance that best separates right predictions from wrong ones: it takes the share `kept` of the right ones and
    leaves the share `refused` of the wrong ones."""

    value: float
    kept: float
    refused: float

    @property
    def separates(self) -> bool:
        """Whether all right predictions are below it, and no wrong one."""
        return self.kept == self.refused == 1

    def words(self, right: str, wrong: str) -> str:
        """Return the threshold as a sentence."""
        if self.separates:
            return f"A threshold of {self.value:.2g} separates {right} from {wrong}."
        return (
            f"No threshold separates {right} from {wrong}: the best one, {self.value:.2g}, takes {self.kept:.0%} of the right "
            f"ones and {1 - self.refused:.0%} of the wrong ones."
        )


_SEPARATED = {  # the kinds of thresholds: right and wrong predictions
    "another observation": ("right predictions, reworded,", "other observations"),
    "one change": ("right predictions, reworded,", "those with one thing wrong"),
    "your pairs": ("the right ones of your pairs", "the wrong ones"),
}


@dataclass(frozen=True)
class BlindSpots:
    """What a reward does not notice."""

    spots: tuple[Spot, ...]
    # an embedding's, by the kind of wrong predictions: `another observation`, `one change`, `your pairs`
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    current: float | None = None  # the embedding's own threshold, if it has one
    # the share of observations that are longer than the embedding's window, which are compared in parts
    longer: float | None = None

    def verdict(self) -> list[str]:
        """Return the result in words, a sentence each."""
        blind = sorted((s for s in self.spots if s.wrong and s.paid), key=lambda spot: -spot.paid)
        strict = [s for s in self.spots if not s.wrong and s.cases and s.paid < 0.5]
        lines = []
        if blind:
            more = f"; and {len(blind) - _NAMED} more, in the table" if len(blind) > _NAMED else ""
            lines.append(
                f"It pays in full for predictions with one thing wrong, most often for these: {_shares(blind[:_NAMED])}{more}."
            )
        elif any(spot.wrong and spot.cases for spot in self.spots):
            lines.append("It pays in full for no prediction with one thing wrong.")
        if strict:
            lines.append(
                f"It is strict about wording: right predictions, reworded, seldom earn the full reward ({_shares(strict)})."
            )
        lines += [threshold.words(*_SEPARATED[kind]) for kind, threshold in self.thresholds.items()]
        if self.current is not None and self.thresholds:
            lines.append(f"The reward's own threshold is {self.current:g}.")
        if (one := self.thresholds.get("one change")) and not one.separates:
            lines.append(
                "Where such a detail matters, this embedding will not do: take `rules`, `exact` or `json`, or `rouge` with "
                "numbers: exact."
            )
        if self.longer:
            lines.append(
                f"{self.longer:.0%} of the observations are longer than the model's window and are compared in parts."
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "verdict": self.verdict(),
            "changes": [spot.as_dict() for spot in self.spots],
            "thresholds": {kind: {**vars(one), "separates": one.separates} for kind, one in self.thresholds.items()},
            "threshold": self.current,
            "longer_than_window": self.longer,
        }


def blind_spots(
    reward: Reward, pairs: Sequence[Pair], *, own: Sequence[tuple[str, str, bool]] = (), seed: int = 0
) -> BlindSpots:
    """Score right predictions that were changed.

    Args:
        own: a user's own (prediction, observation, whether it is right); for a reward with an embedding.
    """
    generator, embedding, spots = random.Random(seed), embedding_of(reward), []
    only = [pair for pair in pairs if _is_embedded(reward, pair)] if embedding else []
    for change in CHANGES:
        made = [(change.make(pair, generator), pair) for pair in pairs]
        cases = [Case(*both, pair) for both, pair in made if both and both[0].strip() != both[1].strip()]
        spots.append(_spot(reward, change, cases, embedding if only else None))
    if embedding is None or not (only or own):
        return BlindSpots(tuple(spots))
    thresholds = _thresholds(spots, embedding, own)
    longer = embedding.share_beyond_window([pair.right for pair in only])
    return BlindSpots(tuple(spots), thresholds, embedding.threshold, longer)


class _OwnPair(Options):
    example = '{"prediction": TEXT, "observation": TEXT, "right": true or false}'

    prediction: str = option("what was predicted")
    observation: str = option("what was observed")
    right: bool = option("whether the prediction is right", strict=True)


def load_pairs(path: str | Path) -> list[tuple[str, str, bool]]:
    """Read a user's own pairs: JSON lines of `prediction`, `observation` and `right` (true or false)."""
    rows: list[tuple[str, str, bool]] = []
    for record in files.lines(Path(path)):
        where = f"{path}, row {record.row + 1}"
        if record.error is not None:
            raise UserError(f"{where}: {record.error}")
        one = _OwnPair.read(record.value, where)
        rows.append((one.prediction, one.observation, one.right))
    if not rows:
        raise UserError(f"{path}: no pairs")
    if len({right for *_, right in rows}) < 2:
        kind = "right" if rows[0][2] else "wrong"
        raise UserError(f"{path}: write right predictions and wrong ones; all of these are {kind}")
    return rows


def separate(right: Sequence[float], wrong: Sequence[float]) -> Threshold:
    """Return the threshold between measured distances that tells most right predictions from wrong ones.

    Both kinds count the same, however many there are of each. What is below the threshold is taken for right.
    """
    right, wrong = sorted(right), sorted(wrong)
    ends = sorted({*right, *wrong})
    places = [ends[0] / 2, *((a + b) / 2 for a, b in pairwise(ends)), ends[-1] + 0.01]
    options = [
        Threshold(place, bisect_left(right, place) / len(right), 1 - bisect_left(wrong, place) / len(wrong))
        for place in places
    ]
    return max(options, key=lambda option: option.kept + option.refused)


def markdown(found: BlindSpots) -> str:
    """Write the result as Markdown: a table with a row per change, and the sentences."""
    lines = ["| one thing changed | is | tried | paid in full | distance | example |", "|---|---|---:|---:|---|---|"]
    for spot in found.spots:
        is_wrong, paid, example = "wrong" if spot.wrong else "right", "", ""
        if spot.cases:
            paid, example = f"{spot.paid:.0%}", " → ".join(f"`{_one_line(text)}`" for text in spot.example)
        low, middle, high = spot.ends or (0.0, 0.0, 0.0)
        distance = f"{middle:.2f} ({low:.2f} to {high:.2f})" if spot.distances else ""
        lines.append(f"| {spot.says} | {is_wrong} | {spot.cases} | {paid} | {distance} | {example} |")
    return "\n".join([*lines, "", *found.verdict()]) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("`", "'").replace("|", "¦")


def _shares(spots: Sequence[Spot]) -> str:
    """Name changes, each with the share of those tried that earned the full reward."""
    return "; ".join(f"{spot.says}: {spot.paid:.0%} of {spot.cases}" for spot in spots)


def _spot(reward: Reward, change: Change, cases: Sequence[Case], embedding: EmbeddingReward | None) -> Spot:
    if not cases:
        return Spot(change.name, change.says, change.wrong, 0, 0.0)
    targets, predictions, pairs = map(list, zip(*cases, strict=True))
    columns, tag = (predictions, targets, [pair.wrong for pair in pairs]), getattr(reward, "tag", None)
    outputs = [[as_output(text, tag) for text in column] for column in columns]
    changed, right, wrong = scores_of(reward, outputs, pairs, targets=targets)
    # no row with a NaN, which a judge's server that failed leaves
    tried = [row for row in range(len(cases)) if right[row] > wrong[row] + TOLERANCE and not math.isnan(changed[row])]
    full = [row for row in tried if changed[row] > right[row] - TOLERANCE]
    distances: Sequence[float] = ()
    if embedding:
        seen = [case for case in cases if _is_embedded(reward, case.pair)]
        distances = embedding.distances([case.prediction for case in seen], [case.target for case in seen])
    shown = cases[(full or tried or [0])[0]]
    paid, example = len(full) / len(tried) if tried else 0.0, _difference(shown.target, shown.prediction)
    return Spot(change.name, change.says, change.wrong, len(tried), paid, tuple(distances), example)


def _thresholds(
    spots: Sequence[Spot], embedding: EmbeddingReward, own: Sequence[tuple[str, str, bool]]
) -> dict[str, Threshold]:
    right = [value for spot in spots if not spot.wrong for value in spot.distances]
    other = [value for spot in spots if spot.name == _ANOTHER for value in spot.distances]
    changed = [value for spot in spots if spot.wrong and spot.name != _ANOTHER for value in spot.distances]
    kinds = {"another observation": (right, other), "one change": (right, changed)}
    if own:
        values = embedding.distances([prediction for prediction, *_ in own], [observed for _, observed, _ in own])
        good, bad = ([v for v, (*_, is_right) in zip(values, own, strict=True) if is_right is s] for s in (True, False))
        kinds["your pairs"] = (good, bad)
    return {kind: separate(*sides) for kind, sides in kinds.items() if all(sides)}


def embedding_of(reward: Any) -> EmbeddingReward | None:
    """Return the embedding that a reward compares with, perhaps inside another reward."""
    for _ in range(3):
        if isinstance(reward, EmbeddingReward):
            return reward
        reward = getattr(reward, "embedding", None) or getattr(reward, "reward", None)
    return None


def _is_embedded(reward: Any, pair: Pair) -> bool:
    """Return whether the embedding scores a pair: RWML's reward takes ROUGE for tools."""
    inner = getattr(reward, "reward", reward)
    return not isinstance(inner, RwmlReward) or pair.columns.get("observer") != "tool"


# The changes


def _number(text: str, _pair: Pair, generator: random.Random) -> str | None:
    match = _any(_NUMBER, text, generator)
    if match is None:
        return None
    last = match[0][-1]
    return f"{text[: match.end() - 1]}{'8' if last == '9' else chr(ord(last) + 1)}{text[match.end() :]}"


def _negation(text: str, _pair: Pair, generator: random.Random) -> str | None:
    if match := _DENIED.search(text):
        return text[: match.start()] + text[match.end() :]
    match = _any(_VERB, text, generator)
    return f"{text[: match.end()]} not{text[match.end() :]}" if match else None


def _opposite(text: str, _pair: Pair, generator: random.Random) -> str | None:
    match = _any(_OPPOSITE, text, generator)
    return _put(text, match, _OTHER[match[0].lower()]) if match else None


def _entity(text: str, pair: Pair, generator: random.Random) -> str | None:
    """Replace a word that only this observation has by one that only the other has."""
    here, there = ({match[0].lower() for match in _WORD.finditer(side[: 1 << 17])} for side in (text, pair.wrong))
    match = _any(_WORD, text, generator, lambda word: word.lower() not in there)
    others = sorted(there - here)
    return _put(text, match, generator.choice(others)) if match and others else None


def _exchanged(text: str, _pair: Pair, generator: random.Random) -> str | None:
    first = _any(_WORD, text, generator)
    second = first and _any(_WORD, text, generator, lambda word: word.lower() != first[0].lower())
    if not first or not second:
        return None
    a, b = sorted((first, second), key=re.Match.start)
    return f"{text[: a.start()]}{_cased(b[0], a[0])}{text[a.end() : b.start()]}{_cased(a[0], b[0])}{text[b.end() :]}"


def _emoji(text: str, _pair: Pair, _generator: random.Random) -> tuple[str, str]:
    for place, char in enumerate(text[: 1 << 16]):
        if unicodedata.category(char) == "So":
            return text, text[:place] + _EMOJI[char == _EMOJI[0]] + text[place + 1 :]
    return f"{text} {_EMOJI[0]}", f"{text} {_EMOJI[1]}"


def _half(text: str, _pair: Pair, _generator: random.Random) -> str | None:
    words = text.split(" ")
    return " ".join(words[: len(words) // 2]) if len(words) >= 6 else None


def _long(text: str, pair: Pair, _generator: random.Random) -> tuple[str, str] | None:
    before = pair.prompt.strip()[-_LONG:]
    if not before:
        return None
    before = "\n".join([before] * (-(-_LONG // len(before))))[:_LONG]
    return f"{before}\n{text}", f"{before}\n{pair.wrong}"


def _layout(text: str, _pair: Pair, _generator: random.Random) -> str | None:
    try:
        value = loads(text, strict=True)
    except ValueError:
        flat = " ".join(text.split())
        return flat if flat != text.strip() else re.sub(r"(?<=[.!?]) ", "\n", flat)
    if not isinstance(value, dict | list):
        return None
    compact = json.dumps(value, ensure_ascii=False)
    return compact if compact != text.strip() else json.dumps(value, ensure_ascii=False, indent=2)


def _short_form(text: str, _pair: Pair, _generator: random.Random) -> str | None:
    for long, short in _SHORT_FORMS:
        for a, b in ((long, short), (short, long)):
            if match := re.search(rf"\b{a}\b", text, re.IGNORECASE):
                return _put(text, match, b)
    return None


_ANOTHER = "another"
CHANGES = (
    Change(_ANOTHER, "another observation of the same tool", True, lambda _, pair, __: pair.wrong),
    Change("number", "one digit is another", True, _number),
    Change("negation", "a `not` more or less", True, _negation),
    Change("opposite", "open for closed, on for off, ...", True, _opposite),
    Change("entity", "a word of another observation for one of this", True, _entity),
    Change("exchanged", "two words have changed places", True, _exchanged),
    Change("emoji", "another emoji, such as ❌ for ✅", True, _emoji),
    Change("half", "the second half is missing", True, _half),
    Change("more", "another observation follows", True, lambda text, pair, _: f"{text}\n{pair.wrong}"),
    Change("long", "another end, after 3,000 characters that are right", True, _long),
    Change("case", "all in lower case", False, lambda text, *_: text.lower()),
    Change("layout", "other white space, JSON set otherwise", False, _layout),
    Change("articles", "without `the` and `a`", False, lambda text, *_: _ARTICLE.sub("", text)),
    Change("short form", "`isn't` for `is not`, or the reverse", False, _short_form),
)


def _any(
    pattern: re.Pattern[str], text: str, generator: random.Random, fits: Callable[[str], bool] = lambda _word: True
) -> re.Match[str] | None:
    """Draw a match from the first ones."""
    matches = [match for match in islice(pattern.finditer(text), _MOST_WORDS) if fits(match[0])]
    return generator.choice(matches) if matches else None


def _put(text: str, match: re.Match[str], word: str) -> str:
    """Put a word in a match's place, in the same case."""
    return text[: match.start()] + _cased(word, match[0]) + text[match.end() :]


def _cased(word: str, like: str) -> str:
    if like.isupper():
        return word.upper()
    return word.capitalize() if like[:1].isupper() else word.lower()


def _difference(a: str, b: str) -> tuple[str, str]:
    """Return where two texts begin to differ."""
    place = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start, end = max(0, place - _SHOWN), place + _SHOWN

    def around(text: str) -> str:
        return f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}"

    return around(a), around(b)
