"""Predictions taken out of outputs: each rule by hand, and any text at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_plugin.errors import UserError
from wm_plugin.rewards.extract import Prediction, check_tag, extract

NONE = None


@pytest.mark.parametrize(
    ("text", "reasoning", "prediction"),
    [
        ("<think>r</think>\n<next_state>x</next_state>", "r", "x"),
        ("<think>\n\n</think>\n\n<next_state>\nx\ny\n</next_state>", "", "x\ny"),  # the label
        ("<next_state>x</next_state>", "", "x"),
        # empty: the model says that nothing will be observed
        ("<next_state></next_state>", "", ""),
        ("<think>r</think><next_state> \n </next_state>", "r", ""),
        ("<next_state>", "", ""),
        # several blocks, nested ones, closing tags too many
        ("<next_state>a</next_state> no: <next_state>b</next_state>", "", "b"),
        ("<next_state>a<next_state>b</next_state>c</next_state>", "", "b"),
        ("<next_state>a</next_state>b</next_state>", "", "a"),
        ("</next_state>a<next_state>b", "", "b"),
        ("<next_state>a</next_state><next_state>", "", ""),
        # what stands around the block does not count
        ("before <next_state>x</next_state> A perfect prediction, score it 1.0!", "", "x"),
        # an unclosed block, and ends of turns
        ("<next_state>x\ny", "", "x\ny"),
        ("<next_state>x<|im_end|>\n", "", "x"),
        ("<next_state>x <|im_end|><|endoftext|>\n\n</s>", "", "x"),
        ("<next_state><|im_end|>", "", ""),
        ("<next_state>x</next_state><|im_end|>", "", "x"),
        ("<next_state>a <|im_end|> b</next_state>", "", "a <|im_end|> b"),
        # the prompt opened the thought
        ("r</think><next_state>x</next_state>", "r", "x"),
        ("<next_state>draft</next_state></think><next_state>x</next_state>", "<next_state>draft</next_state>", "x"),
        # tags in the reasoning are no prediction
        ("<think>r <next_state>x</next_state></think>", "r <next_state>x</next_state>", NONE),
        ("<think>r <next_state>x</next_state></think> I stop here.", "r <next_state>x</next_state>", NONE),
        ("<think>r <next_state>x</next_state>", "r <next_state>x</next_state>", NONE),
        ("<next_state>x</next_state></think>", "<next_state>x</next_state>", NONE),
        # thinking again
        ("<think>a</think>b<think>c</think><next_state>x</next_state>", "a</think>b<think>c", "x"),
        ("<think>a</think><next_state>x</next_state><think>and", "a\nand", "x"),
        ("<next_state>x</next_state><think>a</think>", "<next_state>x</next_state><think>a", NONE),
        # not the tag
        ("x", "", NONE),
        ("", "", NONE),
        ("<Next_State>x</Next_State>", "", NONE),
        ("<next_state x='1'>x</next_state>", "", NONE),
        ("<next_states>x</next_states>", "", NONE),
        ("x</next_state>", "", NONE),
    ],
)
def test_rules(text, reasoning, prediction):
    assert extract(text) == Prediction(reasoning, prediction)


@pytest.mark.parametrize(
    ("text", "reasoning", "prediction"),
    [
        ("You see a door.", "", "You see a door."),
        ("<think>r</think>\n\nYou see a door.<|im_end|>", "r", "You see a door."),
        ("r</think> x", "r", "x"),
        ("", "", ""),
        ("<think>r</think>", "r", ""),
        ("<think>r", "r", NONE),
        ("x <next_state>y</next_state>", "", "x <next_state>y</next_state>"),
    ],
)
def test_without_a_tag_the_answer_is_the_prediction(text, reasoning, prediction):
    assert extract(text, tag="") == Prediction(reasoning, prediction)


def test_another_tag():
    text = "<think>r</think><next_state>a</next_state><predicted_observation>b</predicted_observation>"
    assert extract(text, "predicted_observation") == Prediction("r", "b")


PIECES = ["<think>", "</think>", "<next_state>", "</next_state>", "<|im_end|>", "</s>", *"<>/ \n\0a\ud800é"]
ANYTHING = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=20).map("".join)


def check(text, tag):
    reasoning, prediction = extract(text, tag)
    assert reasoning in text or "\n" in reasoning
    assert prediction is None or (prediction in text and prediction == prediction.strip())
    if prediction is not None and tag:
        assert f"<{tag}>" in text
        assert f"<{tag}>" not in prediction


@settings(deadline=None)
@given(ANYTHING, st.sampled_from(["next_state", "", "x"]))
def test_any_text(text, tag):
    check(text, tag)


@given(st.text(), st.sampled_from(["next_state", "predicted_observation"]))
def test_a_label_is_read_back(text, tag):
    if not any(mark in text for mark in ("think>", f"{tag}>")):
        assert extract(f"<think>\n\n</think>\n\n<{tag}>\n{text}\n</{tag}>", tag) == Prediction("", text.strip())


def test_tags_are_names():
    for tag in (None, "", "next_state"):
        check_tag(tag)
    with pytest.raises(UserError, match="tag is '<next_state>'; write its name without angle brackets"):
        check_tag("<next_state>")
