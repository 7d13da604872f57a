"""ROUGE against the package that everybody cites, and rounding at every boundary."""

import json
import random
from fractions import Fraction
from math import floor
from unicodedata import name

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.rewards import RougeReward
from wm_plugin.rewards.rouge import numbers_of, tokens

VARIANTS = ("rougeL", "rouge1", "rouge2")
REAL = [
    "",
    " ",
    "...",
    "You are at loc 3. On the countertop 1, you see a apple 1, a bread 2, and a tomato 1.",
    "You are at loc 3. On the countertop 1, you see nothing.",
    "Nothing happens.",
    json.dumps({"reservation_id": "ABC123", "flights": [{"number": "HAT001", "price": 120.5}], "cabin": None}),
    json.dumps(
        {"reservation_id": "ABC124", "flights": [{"number": "HAT001", "price": 99}], "cabin": "economy"}, indent=2
    ),
    "Error: user not found",
    "def f(x):\n    return x_1 + 2  # TODO\n",
    'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: 3.0e-4',
    "Größe: 7 µm — naïve café İstanbul ſtraße ﬁn K 3² Ⅷ",
    "你好，世界 hello",
    "你好",
    "а б в",
    "a" * 3000,
    "x y " * 400,
    "y x " * 300,
    "1,234.50 2024-01-01T00:00:00Z",
    "\ud800 a\0b\x1fc\u2028d",
]


def reference(variant, pairs):
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="needs rouge_score").RougeScorer([variant])
    return [scorer.score(target, prediction)[variant].fmeasure for prediction, target in pairs]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_rouge_score_on_random_texts(variant):
    luck = random.Random(f"rouge/{variant}")
    alphabets = ["a b c ", "abc  ", "aA1_ .,\n", 'ab12 {}":,[]', "äßK\u0130 aé1 "]
    pairs = []
    for _ in range(examples(3000)):
        letters = luck.choice(alphabets)
        pairs.append(tuple("".join(luck.choices(letters, k=luck.randint(0, 60))) for _ in range(2)))
    assert RougeReward(variant)(*map(list, zip(*pairs, strict=True))) == reference(variant, pairs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_rouge_score_on_real_texts(variant):
    pairs = [(a, b) for a in REAL for b in REAL if len(a) * len(b) < 10**6]
    found = RougeReward(variant)([a for a, _ in pairs], [b for _, b in pairs])
    assert found == reference(variant, pairs)
    assert max(found) == 1


def test_by_hand():
    # the lawyer's example of every ROUGE: police killed the gunman
    prediction, target = "police kill the gunman", "police killed the gunman"
    assert RougeReward()([prediction, "the gunman kill police"], [target] * 2) == [3 / 4, 2 * 2 / 8]
    assert RougeReward("rouge1")(["the gunman kill police"], [target]) == [3 / 4]
    assert RougeReward("rouge2")(["the gunman kill police"], [target]) == [pytest.approx(1 / 3)]
    assert tokens("Don't_stop: 3.5€ Ä") == ["don", "t", "stop", "3", "5"]


def test_texts_without_tokens_are_counted():
    reward = RougeReward()
    assert reward(["", "你好", "a", None], ["", "你好", "a", "你好"]) == [0, 0, 1, 0]
    assert reward.figures == {"no_prediction": 0.25, "no_tokens": pytest.approx(2 / 3)}


def texts_with(both, said, seen):
    """A prediction and a target of so many tokens, of which so many are shared."""
    return " ".join(["a"] * both + ["b"] * (said - both)), " ".join(["a"] * both + ["c"] * (seen - both))


@pytest.mark.parametrize(
    ("both", "said", "seen", "rounded"),
    [
        (0, 1, 1, 0.0),
        (1, 10, 10, 0.2),  # 0.1: a tie goes up
        (1, 10, 11, 0.0),  # just under
        (3, 10, 10, 0.4),  # 0.3, where 0.3 / 0.2 is 1.4999999999999998
        (2, 7, 7, 0.2),
        (1, 2, 2, 0.6),  # 0.5
        (49, 99, 99, 0.4),
        (7, 10, 10, 0.8),  # 0.7, where 0.7 / 0.2 is 3.4999999999999996
        (69, 99, 99, 0.6),
        (9, 10, 10, 1.0),  # 0.9
        (89, 99, 99, 0.8),
        (1, 1, 1, 1.0),
    ],
)
@pytest.mark.parametrize("variant", ["rougeL", "rouge1"])
def test_rounding_to_a_fifth(variant, both, said, seen, rounded):
    prediction, target = texts_with(both, said, seen)
    assert RougeReward(variant, step=0.2)([prediction], [target]) == [rounded]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 7, 10, 20])
def test_rounding_at_every_boundary(parts):
    """On each tie exactly, and one token to either side of it."""
    reward = RougeReward(step=1 / parts)
    for k in range(parts):
        for said, both in ((2 * parts, 2 * k + 1), (200 * parts, 100 * (2 * k + 1))):
            for seen in (said - 1, said, said + 1):
                exact = Fraction(2 * both, said + seen)
                if both > min(said, seen):
                    continue
                level = floor(exact * parts + Fraction(1, 2))
                assert reward(*([text] for text in texts_with(both, said, seen))) == [level / parts]
                if seen == said:
                    assert exact == Fraction(2 * k + 1, 2 * parts)  # the tie itself
                    assert level == k + 1


@given(st.text("ab1 ", max_size=30), st.text("ab1 ", max_size=30), st.sampled_from([0.1, 0.2, 0.25, 1 / 3, 0.5, 1.0]))
def test_rounded_is_near_and_a_level(prediction, target, step):
    (exact,), (rounded,) = RougeReward()([prediction], [target]), RougeReward(step=step)([prediction], [target])
    assert abs(exact - rounded) <= step / 2 + 1e-12
    assert rounded in [k / round(1 / step) for k in range(round(1 / step) + 1)]


def test_invalid_settings():
    for step in (0.3, 0, -0.2, 2, float("nan")):
        with pytest.raises(UserError, match="step is .*; write a share that divides 1"):
            RougeReward(step=step)
    with pytest.raises(UserError, match="variant is 'rougel'; did you mean 'rougeL'"):
        RougeReward("rougel")


DASHES = [
    char
    for char in map(chr, range(0x110000))
    if any(word in name(char, "") for word in ("DASH", "HYPHEN", "MINUS"))
    and not name(char).startswith(("SUPER", "SUB"))
]
UNSEEN = ["", "\u200b", "\u2060", "\u00ad", "\u034f", "\ufe0f", "\u2800", "\x01", "\ufeff"]
AMOUNTS = st.decimals(0, 10**6, places=2, allow_nan=False).map(str)
NEGATED = (
    "{d}{u}EUR {n}|{d} EUR {n}|({n} EUR)|(EUR {u}{n})|( {n} )|{n}{d}|{n}{u} EUR{d}|{d}{u}${n}|EUR {d}{u}{n}|{d}eur{n}"
)


@settings(max_examples=examples(300), deadline=None)
@given(AMOUNTS, st.sampled_from(NEGATED.split("|")), st.sampled_from(DASHES), st.sampled_from(UNSEEN))
def test_a_sign_is_part_of_its_number_however_it_is_written(amount, negated, dash, unseen):
    text = "order 7 of Anna Berg: lamp, desk, chair, shelf, sent on Monday to Main Street, paid by card, total {}, thank you"
    other = text.format(negated.format(n=amount, d=dash, u=unseen))
    for plain in (f"EUR {amount}", amount, f"{amount} EUR"):
        target = text.format(plain)
        assert RougeReward(step=0.2, numbers="exact")([other, target], [target, target]) == [0.0, 1.0]
    assert RougeReward(step=0.2, numbers="exact")([other], [other]) == [1.0]


def test_every_dash_is_a_sign_and_a_hyphen_between_numbers_is_none():
    assert len(DASHES) > 68
    assert all(numbers_of(f"total {dash}31.50") == ["-31.5"] for dash in DASHES)
    for text, numbers in {
        "2024-01-31": ["2024", "01", "31"],
        "pages 3 - 5": ["3", "5"],
        "(5 min)": ["5"],
        "- 3 lamps": ["3"],
        "pre-tax 31.50": ["31.5"],
        "31.50 EUR": ["31.5"],
    }.items():
        assert numbers_of(text) == numbers, text
