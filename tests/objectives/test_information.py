"""Categories by hand: a pair of texts for each row of the paper's table, and for what decides between two rows."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.information import CATEGORIES, RATIOS, keep_ratio, messages, said
from wm_plugin.data.messages import Conversation
from wm_plugin.data.schema import Action, Call, Observation, Turn
from wm_plugin.data.turn_texts import action_text, categories
from wm_plugin.objectives.information import KEEP, category, statistics

LONG = " ".join(f"word{number}" for number in range(40))


def test_statistics_by_hand():
    found = statistics("read the file a.txt", "The file holds apples")
    assert found.overlap == 2 / 5  # read the file a txt
    assert found.novelty == 2 / 4  # the file holds apples
    assert found.ratio == 21 / 19
    assert statistics("", "") == (0, 0, 0)


def test_the_papers_ratios():
    whole = dict.fromkeys(("expansion", "retrieval", "action", "other"), 1)
    assert {"echo": 0.05, "boilerplate": 0.1, "transform": 0.5, **whole} == KEEP


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


@pytest.mark.parametrize(
    ("action", "observation", "expected"),
    [
        ("a b c d e f g h i j", "a b c d e f g x y", "echo"),  # 70% repeated, 2 of 9 new
        ("a b c d e f g h i j", "a b c d e f g x y z", "boilerplate"),  # 30% new
        ("a b c d", "a b x", "boilerplate"),  # half repeated, a third new
        ("a bc", "a vwxyz", "expansion"),  # half of both
        ("a bc", "a wxyz", "action"),  # 1.5 times as long
        ("a b c d e", "a b x y zz", "retrieval"),  # 60% new, and longer
        ("a b c d e", "a b x y z", "action"),  # as long
        ("a b c d e", "a b x", "transform"),
        ("a b c d e", "a b xxxxx", "other"),  # a third new, and as long
    ],
)
def test_the_edges_of_categories(action, observation, expected):
    assert category(action, observation, short=6) == expected


def test_echo_is_decided_before_boilerplate_and_expansion_before_retrieval():
    overlap, novelty, ratio = statistics("think now", "think now")
    assert (overlap, novelty) == (1, 0)
    assert category("think now", "think now") == "echo"  # a boilerplate too, by its numbers
    text = f"fetch page {LONG}"
    overlap, novelty, ratio = statistics("fetch page", text)
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


def as_trl(messages):
    """Names in place of ids, arguments as mappings, and reasoning in the text."""
    for message in messages:
        message = dict(message)
        if thought := message.pop("reasoning_content", ""):
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}\n"
        if message["role"] == "tool":
            message["name"] = "ask"
            del message["tool_call_id"]
        for call in message.get("tool_calls", ()):
            call["function"] = {**call["function"], "arguments": json.loads(call["function"]["arguments"])}
        yield message


@pytest.mark.parametrize("form", [list, lambda messages: list(as_trl(messages))], ids=["openai", "trl"])
def test_a_conversation_as_data_and_as_a_host_has_it(form):
    conversation = Conversation()
    for number, message in enumerate(form(messages()), 1):
        conversation.add(message, number)
    turns = [Turn.model_validate(turn) for turn in conversation.fields()]
    assert [keep_ratio(turn.action, seen) for turn in turns for seen in turn.observations] == RATIOS
    found, rows = [], form(messages())
    for place, message in enumerate(rows):
        if message.get("tool_calls"):
            found += categories(message, rows[place + 1 :][: len(message["tool_calls"])])
    assert found == CATEGORIES
    assert len(said()) == len(turns)


def test_results_answer_the_calls_of_their_name_in_order():
    calls = [("slow", "a b c"), ("fast", "x y z"), ("slow", "d e f")]
    message = {"tool_calls": [{"function": {"name": n, "arguments": {"v": v}}} for n, v in calls]}
    # as TRL writes them where some tools are asynchronous
    results = [("fast", "fast v x y z"), ("slow", "slow v a b c"), ("slow", "slow v d e f"), ("slow", "slow v a b c")]
    rows = [{"role": "tool", "name": name, "content": text} for name, text in results]
    assert categories(message, rows[:3]) == ["echo"] * 3
    assert categories(message, [rows[0], rows[2], rows[1]])[1:] != ["echo"] * 2
    assert categories(message, rows[3:]) == ["echo"]
    assert categories({"content": "slow v a b c"}, rows[3:]) == ["echo"]  # no call: its text


def test_a_call_that_no_reader_takes_is_not_compared():
    message = {"content": "look", "tool_calls": [{"function": {"name": "", "arguments": {}}}]}
    assert categories(message, [{"role": "tool", "name": "", "content": "look"}]) == ["other"]


@pytest.mark.parametrize("levels", [190, 201, 220, 245])
def test_calls_of_any_depth_have_a_category(levels):
    arguments: Any = 1
    for _ in range(levels):
        arguments = [arguments]
    calls = [{"type": "function", "function": {"name": "look", "arguments": arguments}}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    results = [{"role": "tool", "name": "look", "content": "look"}]
    assert categories(message, results) == (["other"] if levels > 200 else ["boilerplate"]), levels


def test_arguments_are_compared_as_they_are_read():
    assert action_text(Action(text=" é \n", calls=(Call(name="run", arguments={"ü": "a\nb\\new\t"}),))) == (
        'é run {"ü": "a b\\\\new "}'
    )
    assert action_text(Action(calls=(Call(name="look"),))) == "look {}"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("go north", "echo"),
        ("<think>a long thought of many words</think>go north", "echo"),
        ("a long thought of many words </think>\n\ngo north", "echo"),  # the template began the thought
        ("go north <think>a long thought of many words that did not end", "echo"),
        ("<think>go north", "other"),
    ],
)
def test_reasoning_does_not_count(action, expected):
    assert category(action, "go north") == expected


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_texts_have_a_category_and_shares_are_shares(action, observation):
    assert category(action, observation) in KEEP
    found = statistics(action, observation)
    assert all(0 <= value <= 1 for value in found[:2])
