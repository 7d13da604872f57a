"""WMAct's text protocol: what is read of an answer, and the environment that asks for it."""

import inspect
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from support.timing import repeated, too_slow
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.tags import Tagged, actions_of, begins_to_think, in_tags, takes_tags
from wm_plugin.hosting.world import missing_columns, tool_methods, tool_names
from wm_plugin.worlds import grid, maze, sql, wordle
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.verified import verified

BOARD = "#####\n#A.G#\n#####"


@pytest.mark.parametrize(
    ("answer", "actions"),
    [
        ("<think>up, then left</think><action>move up; push left</action>", "move up; push left"),
        ("<think>up</think>\n\n<action>\nmove up\n</action>\nmore", "\nmove up\n"),
        ("<action>a</action>", "a"),
        ("thoughts that a template began</think><action>a</action>", "a"),
        ("maybe <action>b</action>? no.</think><action>a</action>", "a"),
        ("<think>maybe <action>b</action></think><action>a</action>", "a"),
        ("<think>one <think> two</think><action>a</action>", "a"),
        ("<action>a</action> then <action>b; c</action>", "a; b; c"),
        ("<action>a</action><think>or <action>b</action></think>", "a"),
        ("<action><think>a</think></action>", "<think>a</think>"),
        ("<action><action>a</action>", "<action>a"),
        ("<action></action>", ""),
        ("", None),
        ("move up", None),
        ("<think><action>a</action>", None),
        ("<action>a", None),
        ("a</action>", None),
        ("<action>a</action></think>", None),
        ("<ACTION>a</ACTION>", None),
    ],
)
def test_the_actions_of_an_answer(answer, actions):
    assert actions_of(answer) == actions


@pytest.mark.parametrize(
    ("answer", "actions"),
    [
        ("maybe <action>b</action>", None),  # cut while it thinks
        ("maybe <action>b</action></think><action>a</action>", "a"),
        ("<think>maybe <action>b</action></think><action>a</action>", "a"),
        ("<action>a</action>", None),
        ("", None),
    ],
)
def test_an_answer_whose_thinking_the_prompt_began(answer, actions):
    assert actions_of(answer, thinking=True) == actions


PIECES = ["<think>", "</think>", "<action>", "</action>", "<", "</action", "think>", "a", "; ", "\n"]


def one_character_after_the_other(answer, thinking):
    texts, inside, text = [], "think" if thinking else "", ""
    while answer:
        tag = next((tag for tag in PIECES[:4] if answer.startswith(tag)), None)
        if inside == "action" and tag != "</action>":
            tag = None  # anything else is part of the action
        answer, text = (answer[len(tag) :], text) if tag else (answer[1:], text + answer[0])
        if inside == "action" and tag:
            texts, inside = [*texts, text], ""
        elif tag == "</think>":
            texts, inside = (texts if inside else []), ""
        elif tag in ("<think>", "<action>") and not inside:
            inside, text = tag[1:-1], ""
    return "; ".join(texts) if texts else None


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.booleans())
def test_any_answer(answer, thinking):
    assert actions_of(answer, thinking=thinking) == one_character_after_the_other(answer, thinking)


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),  # a model that is not to think
        ("<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_that_begins_to_think(prompt, begins):
    assert begins_to_think(prompt) is begins


@pytest.mark.parametrize(
    "unit",
    [
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "<action>a</action>",
        "<",
        "</",
        "<action>x</think>",
        "<think><action>",
    ],
)
def test_reading_takes_time_in_proportion_to_the_answer(unit):
    slow = too_slow(actions_of, repeated(unit), largest=16_000)
    assert slow is None, slow


def test_an_environment_in_tags():
    environment = in_tags(rewarded(maze.MazeEnvironment))
    assert environment is in_tags(rewarded(maze.MazeEnvironment))
    assert takes_tags(environment)
    assert not takes_tags(maze.MazeEnvironment)
    assert tool_names(environment) == ["act"]
    assert (environment.__name__, environment.__module__) == ("MazeEnvironment", "wm_plugin.worlds.maze")
    assert inspect.signature(environment.reset) == inspect.signature(maze.MazeEnvironment.reset)
    assert missing_columns(environment, []) == missing_columns(maze.MazeEnvironment, [])
    instance = environment()
    first = instance.reset(board=BOARD, max_turns=4)
    assert first.startswith(BOARD + ">\n")
    assert "<action>first action; second action</action>" in first
    assert first.count("<think>") == first.count("</think>") == 1
    assert list(tool_methods(instance)) == ["act"]
    assert instance.act("move right; fly") == "Invalid: 1 of 2\n#####\n#.AG#\n#####>"
    assert instance.act("R").endswith("!")
    assert instance.get_reward() == pytest.approx(2 / 3 - 0.1)


def test_one_action_a_turn_is_asked_for_as_such():
    first = in_tags(grid.GridEnvironment)().reset("AG..\n....\n....\n....")
    assert "<action>your action</action>" in first
    assert ";" not in first


def test_the_worlds_below_hear_calls_of_the_worlds_own_tool_and_no_text_of_tags():
    heard = []
    below = SimpleNamespace(instance=None, turn=lambda action, results: heard.append((action, results)))
    world = Tagged(below, None, maze.MazeEnvironment)
    world.turn(Action(text="<action>R</action>", calls=(Call(name="act", arguments={"actions": "R"}),)), ["a"])
    world.turn(Action(text="I give up."), [])
    world.turn(Action(calls=(Call(name="act", arguments={}), Call(name="act", arguments="R"))), ["b", "c"])
    (name,) = tool_names(maze.MazeEnvironment)
    (parameter,) = list(inspect.signature(maze.MazeEnvironment.move).parameters)[1:]
    assert [
        (action.text, [(one.name, one.arguments) for one in action.calls], results) for action, results in heard
    ] == [
        ("", [(name, {parameter: "R"})], ["a"]),
        ("I give up.", [], []),
        ("", [(name, {parameter: ""}), (name, {parameter: "R"})], ["b", "c"]),
    ]


class Slow(maze.MazeEnvironment):
    async def move(self, direction: str) -> str: ...


class Number(maze.MazeEnvironment):
    def move(self, direction: int) -> str: ...


class Nothing:
    def reset(self): ...


@pytest.mark.parametrize("environment", [sql.SqlEnvironment, Slow, Number, Nothing])
def test_what_has_no_text_of_actions(environment):
    with pytest.raises(UserError, match=r"^protocol: tags writes one text of actions, and \w+ has the tools "):
        in_tags(environment)


def test_agents_that_try_several_calls_have_no_tags():
    world = {"url": "http://localhost:1/v1", "model": "w"}
    assert takes_tags(in_tags(verified(wordle.WordleEnvironment, {"world_model": world})))
    deep = verified(wordle.WordleEnvironment, {"world_model": world, "depth": 2, "agent": world})
    with pytest.raises(UserError, match=r"verify\.depth is of an agent that calls tools; write depth: 1"):
        in_tags(deep)
