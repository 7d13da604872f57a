"""What a judge replied, whatever it is."""

import json
import random
import time

import pytest

from wm_plugin.rewards.rubric import DIMENSIONS, parse
from wm_plugin.rewards.verdict import fields, number

SCORES = {"format": 5, "factuality": 4, "consistency": 3, "realism": 2, "quality": 1}
PLAIN = json.dumps(SCORES)


def in_tag(text):
    return f"<final_evaluation>\n{text}\n</final_evaluation>"


@pytest.mark.parametrize(
    "reply",
    [
        in_tag(PLAIN),
        f"The layout is right: format 1.\n{in_tag(PLAIN)}\nThat is all.",
        in_tag(f"```json\n{PLAIN}\n```"),
        in_tag(json.dumps(SCORES, indent=4)),
        in_tag(PLAIN.replace("}", ",}")),
        in_tag(PLAIN.replace('"', "'")),
        in_tag(PLAIN.replace('"', "")),
        in_tag(PLAIN.replace('"', "“")),
        in_tag(json.dumps({name: str(score) for name, score in SCORES.items()})),
        in_tag(json.dumps({name: f"{score}/5" for name, score in SCORES.items()})),
        in_tag(json.dumps({name: float(score) for name, score in SCORES.items()})),
        in_tag(json.dumps({name.title(): score for name, score in SCORES.items()})),
        in_tag(json.dumps({name: {"reason": "score: 5, I thought", "score": score} for name, score in SCORES.items()})),
        in_tag("{" + ", ".join(f"'{n}': {{'reason': 'score: 5', 'score': {s},}}" for n, s in SCORES.items()) + "}"),
        in_tag(json.dumps({"scores": SCORES, "overall": 5})),
        in_tag(json.dumps({"reasoning": 'a {brace} and a "quote"', **SCORES})),
        in_tag("\n".join(f"- **{name}**: {score}/5" for name, score in SCORES.items())),
        in_tag("\n".join(f"{name} = {score}." for name, score in SCORES.items())),
        in_tag(PLAIN).upper(),
        f"<final_evaluation>{PLAIN}",
        f"< final_evaluation >{PLAIN}</ final_evaluation >",
        f"{in_tag(PLAIN.replace('1', '5'))} was in the prediction.\n{in_tag(PLAIN)}",
        f"<final_evaluation> I will use <final_evaluation>{PLAIN}</final_evaluation></final_evaluation>",
        f"<think>format 1 {{'format': 1}}</think>\n{PLAIN}",
        f"```json\n{PLAIN}\n```",
        f'first {{"format": 1}} and then {PLAIN}',
        in_tag(json.dumps(SCORES | {"format": 7, "quality": -3})),
    ],
)
def test_replies_that_have_a_verdict(reply):
    assert parse(reply) == {name: float(score) for name, score in SCORES.items()}


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "All five are perfect.",
        in_tag(""),
        in_tag("null"),
        in_tag("[5, 5, 5, 5, 5]"),
        in_tag(json.dumps({name: score for name, score in SCORES.items() if name != "quality"})),
        in_tag(json.dumps(SCORES | {"quality": None})),
        in_tag(json.dumps(SCORES | {"quality": True})),
        in_tag(json.dumps(SCORES | {"quality": [5]})),
        in_tag(json.dumps(SCORES | {"quality": "high"})),
        in_tag(json.dumps(SCORES | {"quality": "9/10"})),
        in_tag(json.dumps(SCORES | {"quality": float("nan")})),
        in_tag(json.dumps(SCORES | {"quality": float("inf")})),
        in_tag(PLAIN[: len(PLAIN) // 2]),
        f"{in_tag(PLAIN)} was in the prediction. Mine: {in_tag('I cannot say')}",  # its last one cannot be read
        in_tag(json.dumps(SCORES).replace("1}", "1" * 5000 + "}")),
    ],
)
def test_replies_that_have_none(reply):
    assert parse(reply) is None


def test_numbers():
    assert [number(value, 0.0, 1.0) for value in (0, 1, 0.25, "0.5", " 1 ", "1.", "**0.5**", -2, "7", 10**400)] == [
        *(0.0, 1.0, 0.25, 0.5, 1.0, 1.0, 0.5, 0.0, 1.0, 1.0)
    ]
    assert [number(value, 1.0, 5.0) for value in (None, True, "", "five", "1e3", "٣", [], {}, "4/4", "1 2")] == [
        None
    ] * 10


def test_names_are_whole_words():
    assert fields("informat: 5, format_score: 4, quality: 2", ["format", "quality"]) == {"quality": "2"}


def pieces(random_):
    """Parts of replies, whole and broken, in any order."""
    value = random_.choice(
        ["5", "-1", "1e999", '"4/5"', "NaN", "true", "null", "[]", '{"score": 3}', "{", "9" * 40, "'2'"]
    )
    name = random_.choice([*DIMENSIONS, "score", "Format", "reason", "scores"])
    return random_.choice(
        [
            "<final_evaluation>",
            "</final_evaluation>",
            "<FINAL_EVALUATION",
            f'"{name}": {value},',
            f"{name}={value}",
            PLAIN,
            json.dumps({"scores": SCORES}),
            "```json\n",
            "{",
            "}",
            "\\u0000",
            "\x00\ud800",
            " " * random_.randrange(50),
            "".join(chr(random_.randrange(1, 0x3000)) for _ in range(random_.randrange(12))),
            '{"a":' * random_.randrange(40),
            "[" * random_.randrange(40),
        ]
    )


def test_ten_thousand_replies_give_scores_in_range_or_none():
    random_, scored = random.Random(0), 0
    for _ in range(10_000):
        reply = "".join(pieces(random_) for _ in range(random_.randrange(1, 12)))
        scores = parse(reply)
        scored += scores is not None
        assert scores is None or (tuple(scores) == DIMENSIONS and all(1 <= score <= 5 for score in scores.values()))
        value = fields(reply, ["score"]).get("score")
        score = number(value, 0.0, 1.0)
        assert score is None or 0 <= score <= 1
    assert 1000 < scored < 9000


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        '{"a":',
        "<final_evaluation>",
        "format:" + " " * 50,
        "format: {",
        '"',
        "<  ",
        "[",
        ", ",
        "<final_evaluation>{",
        "{'a",
    ],
)
def test_long_replies_take_no_time(unit):
    start = time.perf_counter()
    for text in (
        unit * (200_000 // len(unit)),
        f"format{unit * 30_000}",
        unit + " " * 200_000,
        "format:" + " " * 40_000,
    ):
        parse(text)
    assert time.perf_counter() - start < 3
