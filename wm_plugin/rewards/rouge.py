"""ROUGE (Lin 2004), RWML's reward for tool results (§C.1): a tool's keys and values, in order.

Equal to the F-measure of the package `rouge_score` without stemming, to the last bit, and many times faster: rapidfuzz computes
the longest common subsequence on bit vectors.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, get_args
from unicodedata import category, decimal, name

from rapidfuzz.distance import LCSseq

from wm_plugin.errors import UserError, shown
from wm_plugin.rewards.base import TextReward, check_choice

Variant = Literal["rougeL", "rouge1", "rouge2"]
Numbers = Literal["tokens", "exact"]
_NUMBER = re.compile(
    # Between digits the first hyphen is no sign: 2024-01-31, 3-5, 3 - 5; nor is a list's. A number in brackets is negative.
    r"((?:(?<![\d-])|(?<=\d-))-++|(?<=[^\s\d-][^\S\n])-[^\S\n]|(?<!\w)\((?=[^()\s]{1,40}\)))?[$€£¥₹₩₽₺₪₫฿]?(?:"
    r"(0x[0-9a-f]+|(?<=\bv)\d++\.\d++(?!\.\d))"  # hexadecimal, or a version of two parts, whose last zero counts
    r"|((?:\d+(?:,\d{3}(?!\d))*|(?<![.\d])(?=\.\d))(?:\.\d+)*)(e[+-]?\d++(?!\w))?)"
    r"|([²³¹¼-¾⁰-⁻₀-₋⅐-↉①-⒛⓪-⓿❶-➓㆒-㆕㈠-㈩㉈-㉏㉑-㉟㊀-㊉㊱-㊿]+)",  # powers, fractions, in circles: no digits for `int`
    re.IGNORECASE,
)
_SIGNS = str.maketrans("٫٬．", ".,.")
# A sign or a bracket apart from its number by a currency: -EUR 31.50, (31.50 EUR); and a sign behind: 31.50-
_CURRENCY = r"(?:(?-i:[A-Z]{2,3})[$€£¥]?|[$€£¥₹₩₽₺₪₫฿]|eur|usd|gbp|jpy|chf|cny|inr|cad|aud)"
_SIGN_BEFORE = re.compile(rf"(?:(?<![\w-])(-)-*+[^\S\n]?{_CURRENCY}|(\()[^\S\n]?{_CURRENCY}?)[^\S\n]?$", re.IGNORECASE)
_SIGN_BEHIND = re.compile(rf"(?:[^\S\n]?{_CURRENCY})?(?:(-)-*+(?!\w)|[^\S\n]?(\)))", re.IGNORECASE)
_NEAR = 12  # characters on each side of a number to search for its sign
_HIDDEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]|[^\x00-\x7f]")  # perhaps another dash, or invisible
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters and signs without ink
_LARGEST = 1_000_000_000  # product of two numbers of tokens: about a second
_SPACED = bytes(code if code in b"abcdefghijklmnopqrstuvwxyz0123456789" else 32 for code in range(256))


class RougeReward(TextReward):
    """2PR/(P+R) over the tokens that both texts share: in the same order (rougeL), anywhere (rouge1), or as pairs (rouge2).

    As in the original, tokens are runs of a-z and 0-9 in lower case. A text without tokens, such as an empty or a Chinese one,
    therefore scores 0 even against itself; the figure `no_tokens` is the share of predictions with such a target.

    rougeL takes time by the product of the numbers of tokens. Above 10^9 (30,000 tokens each), texts are compared in parts of
    equal number after their equal beginnings and ends; the score is then at most the original's.

    Args:
        variant: rougeL, rouge1 or rouge2.
        step: round to the nearest multiple of this, which steadies training; RWML has 0.2. 1 must be a multiple of it. Ties go
            up: 0.5 becomes 0.6. They are decided on the exact fraction, not on a float.
        numbers: "exact" scores 0 unless the prediction's numbers are the observation's, in order: a wrong amount in a long
            result changes one token of many, which rounding hides. "tokens", the original, treats them as any token. 31.5 is
            31.50, 1,000 is 1000, and digits of other scripts count as what they stand for; (31.5), - 31.5, -EUR 31.5 and 31.5-
            are other numbers, and so is v1.10 than v1.1. Other surroundings do not matter.
        tag: see `TaggedReward`.
    """

    def __init__(
        self,
        variant: Variant = "rougeL",
        step: float | None = None,
        *,
        numbers: Numbers = "tokens",
        tag: str | None = None,
    ) -> None:
        super().__init__(tag=tag)
        check_choice("variant", variant, get_args(Variant))
        check_choice("numbers", numbers, get_args(Numbers))
        if step is not None and not (0 < step <= 1 and abs(round(1 / step) * step - 1) < 1e-9):
            raise UserError(f"step is {shown(step)}; write a share that divides 1, such as 0.2, or leave it out")
        self.variant, self.step, self.numbers = variant, step, numbers
        self._steps = None if step is None else round(1 / step)

    def score(self, predictions: list[str], targets: list[str]) -> tuple[list[float], dict[str, float]]:
        scores = []
        no_tokens = 0
        last, observed, has_tokens = "", self._grams(""), False
        for prediction, target in zip(predictions, targets, strict=True):
            if target != last:  # the predictions of a group come one after the other and have the same target
                last, observed = target, self._grams(target)
                has_tokens = bool(observed or tokens(target))
            no_tokens += not has_tokens
            if self.numbers == "exact" and numbers_of(prediction) != numbers_of(target):
                scores.append(0.0)
                continue
            predicted = self._grams(prediction)
            common = self._common(predicted, observed)
            scores.append(_f_measure(common, len(predicted), len(observed), self._steps))
        return scores, {"no_tokens": no_tokens / len(targets) if targets else 0.0}

    def _common(self, predicted: Sequence[Hashable], observed: Sequence[Hashable]) -> int:
        if len(predicted) * len(observed) <= _LARGEST:
            return LCSseq.similarity(predicted, observed)
        if self.variant != "rougeL":
            return (Counter(predicted) & Counter(observed)).total()
        return _long_common(predicted, observed)

    def _grams(self, text: str) -> Sequence[Hashable]:
        """Return the items to compare. Sorted ones make the longest common subsequence of two texts their intersection."""
        words = tokens(text)
        if self.variant == "rouge1":
            return sorted(words)
        if self.variant == "rouge2":
            return sorted(map(hash, pairwise(words)))  # rapidfuzz compares hashes as well
        return words


def tokens(text: str) -> list[str]:
    """Return all `[a-z0-9]+` of a text in lower case. Turning all other characters into spaces is much faster than a pattern."""
    return text.lower().encode("ascii", "replace").translate(_SPACED).decode().split()


def numbers_of(text: str) -> list[str]:
    """Return a text's numbers with their signs, without commas and without zeros at the ends of fractions."""
    text = _HIDDEN.sub(lambda match: _seen(match[0]), text).translate(_SIGNS)
    return [_sign(text, match) + _plain_number(*match.groups("")) for match in _NUMBER.finditer(text)]


@lru_cache(4096)
def _seen(char: str) -> str:
    """Return a hyphen for every Unicode dash, hyphen or minus, and nothing for an invisible character."""
    called = name(char, "")
    if any(word in called for word in ("DASH", "HYPHEN", "MINUS")) and not called.startswith(
        ("SUPERSCRIPT", "SUBSCRIPT")
    ):
        return "-"
    return "" if char in _BLANK or category(char) in ("Cc", "Cf", "Mn", "Me") else char


def _sign(text: str, match: re.Match[str]) -> str:
    """Return the sign of a number that has a currency between, or that stands behind it; "" if the number itself has it."""
    before = _SIGN_BEFORE.search(text[max(match.start() - _NEAR, 0) : match.start()])
    behind = _SIGN_BEHIND.match(text, match.end(), match.end() + _NEAR)
    in_front, opens = before.groups() if before else (None, None)
    after, closes = behind.groups() if behind else (None, None)
    return (in_front or "") + ("(" if opens and closes else "") + ("behind" if after else "")


def _plain_number(sign: str, in_hex: str, number: str, exponent: str, other: str) -> str:
    number = number.replace(",", "")
    if number.count(".") == 1:  # with more of them it is a version or an address
        number = ("0" if number.startswith(".") else "") + _with_our_digits(number).rstrip("0").removesuffix(".")
    return (
        sign.strip()
        + _with_our_digits(in_hex.lower())
        + _with_our_digits(number + exponent.lower().replace("+", ""))
        + other
    )


def _with_our_digits(number: str) -> str:
    return number if number.isascii() else "".join(str(decimal(char)) if char.isdecimal() else char for char in number)


def _long_common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return a common subsequence's length, at most the longest's: exact at equal beginnings and ends, then in parts."""
    start = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    end = next(
        (n for n, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), min(len(a), len(b))
    )
    a, b = a[: len(a) - end], b[: len(b) - end]
    parts = -(-len(a) * len(b) // _LARGEST) or 1
    ends = [(len(a) * part // parts, len(b) * part // parts) for part in range(parts + 1)]
    return start + end + sum(LCSseq.similarity(a[i:k], b[j:m]) for (i, j), (k, m) in pairwise(ends))


def _f_measure(common: int, predicted: int, observed: int, steps: int | None) -> float:
    """Return 2PR/(P+R) = 2·common/(predicted+observed); with `steps`, rounded to the nearest k/steps in integers, ties up."""
    if not common:
        return 0.0
    if steps is not None:
        total = predicted + observed
        return (4 * common * steps + total) // (2 * total) / steps
    precision, recall = common / predicted, common / observed
    return 2 * precision * recall / (precision + recall)
