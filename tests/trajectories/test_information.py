"""Categories by hand: a pair of texts for each row of the paper's table, and for what decides between two rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.trajectories.information import KEEP, action_text, category, keep_ratio, statistics
from wm_plugin.trajectories.schema import Action, Call, Observation

LONG = " ".join(f"word{number}" for number in range(40))


def test_statistics_by_hand():
    found = statistics("read the file a.txt", "The file holds apples")
    assert found.overlap == 2 / 5  # read the file a txt
    assert found.novelty == 2 / 4  # the file holds apples
    assert found.jaccard == 2 / 7
    assert found.ratio == 21 / 19


@pytest.mark.parametrize(
    ("action", "observation", "expected"),
    [
        ("read_file notes", LONG, "retrieval"),
        ("fetch example page", f"example page fetch {LONG}", "expansion"),
        ("send an email to the whole team about the party on friday", "sent", "action"),
        ("click", "A dialog opened over there now", "retrieval"),
        ("one two three four five six seven eight nine ten", "one two yes", "transform"),
        ("set colour to red", "colour set: red now ok", "boilerplate"),
        ("think I should go north", "I should think: go north", "echo"),
        ("", LONG, "other"),
        ("look", "", "other"),
        ("look", "...", "other"),
        ("a b c d", "a b e f " * 30, "expansion"),
    ],
)
def test_categories(action, observation, expected):
    assert category(action, observation) == expected


def test_echo_is_decided_before_boilerplate_and_expansion_before_retrieval():
    overlap, novelty, _, ratio = statistics("think now", "think now")
    assert (overlap, novelty) == (1, 0)
    assert category("think now", "think now") == "echo"  # a boilerplate too, by its numbers
    text = f"fetch page {LONG}"
    overlap, novelty, _, ratio = statistics("fetch page", text)
    assert overlap >= 0.5
    assert novelty >= 0.6
    assert ratio > 1.5
    assert category("fetch page", text) == "expansion"


def test_what_short_is_can_be_said():
    assert category("go now then", "alpha bravo charlie go") == "retrieval"  # novel enough: its length does not matter
    half = "alpha bravo go north"
    assert statistics("go north please", half).novelty == 0.5
    assert category("go north please", half) == "action"
    assert category("go north please", half, short=5) == "other"


def test_of_parallel_calls_the_one_that_was_answered_counts():
    action = Action(text="", calls=(Call(name="think", arguments={"x": "hello world"}), Call(name="look")))
    assert action_text(action, 0) == 'think {"x": "hello world"}'
    echo = Observation(kind="tool", text='think x: "hello world"', call=0)
    assert keep_ratio(action, echo) == KEEP["echo"] == 0.05
    assert keep_ratio(action, echo.model_copy(update={"call": 1})) == 1.0


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_texts_have_a_category_and_shares_are_shares(action, observation):
    assert category(action, observation) in KEEP
    found = statistics(action, observation)
    assert all(0 <= value <= 1 for value in found[:3])
    assert found.jaccard <= min(1.0, found.overlap + 1e-12) or found.overlap == 0
