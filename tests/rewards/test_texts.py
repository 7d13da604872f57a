"""What all rewards of texts have in common, and those that are plain arithmetic."""

import importlib
import inspect
import json
import math
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wm_plugin.rewards
from wm_plugin.errors import UserError
from wm_plugin.rewards import REWARDS, ExactReward, JsonMatchReward, RougeReward, WordF1Reward
from wm_plugin.rewards.json_match import NO_JSON, compare, is_same, parse

PLAIN = (ExactReward, JsonMatchReward, RougeReward, WordF1Reward)


def test_the_registry_is_closed():
    """Each module's reward of predictions is registered, exported, and nothing else is."""
    classes = {REWARDS.get(name) for name in REWARDS}
    assert all(getattr(wm_plugin.rewards, found.__name__) is found for found in classes)
    assert all(hasattr(wm_plugin.rewards, name) for name in wm_plugin.rewards.__all__)
    exported = {getattr(wm_plugin.rewards, name) for name in wm_plugin.rewards.__all__ if name != "REWARDS"}
    written = {
        found
        for module in pkgutil.iter_modules(wm_plugin.rewards.__path__, "wm_plugin.rewards.")
        for name, found in vars(importlib.import_module(module.name)).items()
        if inspect.isclass(found) and found.__module__ == module.name and name.endswith("Reward")
        if not inspect.isabstract(found) and name not in ("HostedReward", "PredictionReward")  # they carry any reward
    }
    assert classes <= exported
    assert written <= exported
    assert {"rouge", "exact", "word_f1", "embedding", "rwml", "json"} <= set(REWARDS)
    with pytest.raises(AttributeError, match="no attribute 'Rouge'"):
        _ = wm_plugin.rewards.Rouge
    with pytest.raises(UserError, match="wm_plugin.rewards has no 'RougReward'; did you mean 'RougeReward'"):
        REWARDS.get("wm_plugin.rewards:RougReward")


def test_reading_a_prediction_waits_for_no_torch():
    code = "import sys, wm_plugin.rewards; wm_plugin.rewards.extract('x'); wm_plugin.rewards.RougeReward()\n"
    code += "assert not {'torch', 'aiohttp', 'sentence_transformers'} & set(sys.modules); print('ok')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("reward", PLAIN)
def test_predictions_and_whole_outputs(reward):
    tagged = "<next_state>[1]</next_state>"
    outputs = [f"<think>x</think>{tagged}", "[1]", None, f"<think>{tagged}</think>"]
    for tag, scores in ((None, [0, 1, 0, 0]), ("next_state", [1, 0, 0, 0])):
        made = reward(tag=tag)
        found = made(outputs, ["[1]"] * 4, observer=["tool"] * 4)
        assert [float(score == 1) for score in found] == scores
        assert made.figures["no_prediction"] == (0.25 if tag is None else 0.75)
    assert reward(tag="")(["<think>x</think>\n\n[1]"], ["[1]"]) == [1]
    assert made([], []) == []
    assert made.figures["no_prediction"] == 0
    assert reward()([""], [""]) == [float(reward is not RougeReward)]  # rouge_score gives an empty text 0
    with pytest.raises(UserError, match="write its name without angle brackets"):
        reward(tag="<x>")


@pytest.mark.parametrize("reward", PLAIN)
def test_invalid_inputs(reward):
    for predictions, targets, message in (
        (["a"], ["a", "b"], "there are 1 predictions and 2 targets; write one target for each"),
        ("a", ["a"], "predictions is a text; write a list of texts"),
        (["a"], "a", "targets is a text"),
        (["a", 1], ["a", "b"], "prediction 1 is of type int; write a text, or None"),
        (["a"], [None], "target 0 is of type NoneType; write the text that was observed"),
    ):
        with pytest.raises(UserError, match=message):
            reward()(predictions, targets)


@pytest.mark.parametrize(
    ("options", "prediction", "target", "score"),
    [
        ({}, "a b", "a b", 1),
        ({}, "\n a b ", "a b\n", 1),
        ({}, "a  b", "a b", 0),
        ({}, "A b", "a b", 0),
        ({"strip": False}, "a b ", "a b", 0),
        ({"strip": False}, "a b", "a b", 1),
        ({"ignore_case": True}, "A STRASSE", "a straße", 1),
        ({"ignore_whitespace": True}, "a\n\t b ", "a b", 1),
        ({"ignore_whitespace": True, "strip": False}, " a  b", "a b", 1),
        ({"json": True}, '{"b": 1.0, "a": [true]}', '{"a":[true],"b":1}', 1),
        ({"json": True}, "[1]", "[true]", 0),
        ({"json": True}, "[1, 2]", "[2, 1]", 0),
        ({"json": True}, "{}", "[]", 0),
        ({"json": True}, "no", "no", 1),
        ({"json": True}, "no", "[1]", 0),
        ({"json": True}, "[1", "[1 ", 1),
        ({"json": True, "ignore_case": True}, '["A"]', '[ "a" ]', 1),
    ],
)
def test_exact(options, prediction, target, score):
    assert ExactReward(**options)([prediction], [target]) == [score]


@pytest.mark.parametrize(
    ("prediction", "target", "score"),
    [
        ("the cat sat", "the cat sat", 1),
        ("The CAT, sat!", "the cat sat", 1),
        ("the cat", "the dog sat down", 2 * 1 / 6),
        ("a a a b", "a b b c", 2 * 2 / 8),  # a once, b once
        ("b a", "a b", 1),  # order does not count
        ("größe 7", "Größe 8", 2 * 1 / 4),
        ('{"id": 7, "open": true}', '{"id": 8, "open": true}', 2 * 3 / 8),
        ("a", "b", 0),
        ("", "a", 0),
        ("a", "", 0),
        ("", " ", 1),
        ("...", "...\n", 1),
        ("...", "!", 0),
    ],
)
def test_word_f1(prediction, target, score):
    assert WordF1Reward()([prediction], [target]) == [pytest.approx(score, abs=1e-15)]


@given(st.text(), st.text())
def test_scores_are_from_0_to_1_symmetric_and_1_for_the_same(a, b):
    for reward in (ExactReward(), WordF1Reward(), JsonMatchReward()):
        there, back = reward([a, b], [b, a])
        assert 0 <= there == back <= 1
        assert reward([a], [a]) == [1]


@pytest.mark.parametrize(
    ("prediction", "target", "score"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', 1),
        ('{"a": 1}', '{"a": 1, "b": 2}', 1 / 2),  # missing
        ('{"a": 1, "b": 2, "c": 3}', '{"a": 1, "b": 2}', 2 / 3),  # extra
        ('{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 1 / 2),  # changed
        ('{"a": {"x": 1, "y": [1, 2]}}', '{"a": {"x": 1, "y": [1, 3]}}', 2 / 3),
        ('{"a": {"x": 1, "y": 2}, "b": 1}', '{"b": 1}', 1 / 3),  # an extra object, with all of its leaves
        ('{"a": 1, "b": 1}', '{"a": {"x": 1, "y": 2}, "b": 1}', 1 / 3),  # a leaf instead of an object
        ("[1, 2, 3]", "[1, 2]", 2 / 3),
        ("[]", "[]", 1),
        ("{}", "{}", 1),
        ("[]", "{}", 0),
        ("[]", "[1]", 0),
        ('{"a": {}}', '{"a": {}}', 1),
        ("1", "1.0", 1),
        ("1", "true", 0),
        ("0", "false", 0),
        ("null", "null", 1),
        ("null", '""', 0),
        ("no JSON", '{"a": 1}', 0),
        ('{"a": 1}', "no JSON", 0),
        (" no JSON", "no JSON\n", 1),
        ("[NaN]", "[NaN]", 1),  # not JSON, but the same text
        ("[NaN]", "[ NaN]", 0),
    ],
)
def test_json_match(prediction, target, score):
    assert JsonMatchReward()([prediction], [target]) == [pytest.approx(score)]


def test_json_figures():
    reward = JsonMatchReward()
    reward(["[1, 9]", "[1, 2, 3]", "x", "x", "y"], ["[1, 2]", "[1, 2]", "[1]", "x", "x"])
    assert reward.figures == {
        "no_prediction": 0,
        "missing": 0,
        "extra": pytest.approx((0 + 1 / 3) / 2),
        "changed": pytest.approx((1 / 2 + 0) / 2),
        "not_json": 1 / 5,
    }
    assert compare({"a": [1, 2], "b": 0}, {"a": [1], "c": {"d": 0, "e": 0}}) == Counter(same=1, missing=2, extra=2)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "9" * 10_000, "-Infinity"])
def test_hostile_json(text):
    assert parse(text) is NO_JSON
    wide = json.dumps({str(n): [n] for n in range(20_000)})
    assert JsonMatchReward()([text, wide], [text, wide]) == [1, 1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
)


@given(JSON, JSON)
def test_leaves_add_up(a, b):
    there, back = compare(a, b), compare(b, a)
    assert there == Counter(same=back["same"], missing=back["extra"], extra=back["missing"], changed=back["changed"])
    assert there.total() >= 1
    assert is_same(a, a)
    assert is_same(a, b) == (json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True))
    assert math.isclose(JsonMatchReward()([json.dumps(a)], [json.dumps(b)])[0], there["same"] / there.total())
