"""Thoughts in an assistant's content are no part of the action, in every format and rollout, and the content can be had back."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.timing import too_slow
from wm_plugin.data.chat import action_message
from wm_plugin.data.prompts import load, render
from wm_plugin.data.readers import read
from wm_plugin.data.thoughts import content_of, split, words
from wm_plugin.data.transitions import expand
from wm_plugin.worlds.agents.policies import read_action

CALL = {"type": "function", "function": {"name": "open", "arguments": '{"door": "</think>"}'}}
TAGGED = '<tool_call>\n{"name": "open", "arguments": {"door": "</think>"}}\n</tool_call>'
SECRET = "<think>\nThe SECRET.\n</think>\n\n"


@pytest.mark.parametrize(
    ("content", "thought", "action"),
    [
        ("go", None, "go"),
        (f"{SECRET}go", SECRET, "go"),
        ("The template began it.</think> go", "The template began it.</think> ", "go"),  # an orphan
        ("<think>a</think>b<think>c</think>d", "<think>a</think>b<think>c</think>", "d"),
        ("<think>cut off", "<think>cut off", ""),
        ("go <think>cut off", "<think>cut off", "go "),
        (f"{SECRET}go<think>cut off", f"{SECRET}<think>cut off", "go"),
        ("<think></think>go", "<think></think>", "go"),
        (f"go {TAGGED}", None, f"go {TAGGED}"),  # an argument is none
        (f"{SECRET}{TAGGED} x", SECRET, f"{TAGGED} x"),
        (
            "<think>perhaps <tool_call>x</tool_call>?</think>go",
            "<think>perhaps <tool_call>x</tool_call>?</think>",
            "go",
        ),
        ("<tool_call>open</think>go", "<tool_call>open</think>", "go"),
    ],
)
def test_a_content_is_a_thought_and_an_action(content: str, thought: str | None, action: str) -> None:
    assert split(content) == (thought, action)
    made = read_action({"content": content.replace("<tool_call>", "<x>")})
    assert content_of(made) == content.replace("<tool_call>", "<x>")
    assert "<think>" not in words(thought)


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "<tool_call>", "<tool_call></think>", "</tool_call>", "<think> "]
)
def test_it_is_linear(piece: str) -> None:
    assert not too_slow(split, lambda count: piece * count)


def rows() -> dict[str, Any]:
    says = {"role": "assistant", "content": SECRET, "tool_calls": [CALL]}
    messages = [{"role": "user", "content": "hi"}, says, {"role": "tool", "content": "open now"}]
    ended = [*messages, {"role": "assistant", "content": f"{SECRET}done"}]
    text = f"{SECRET}{TAGGED}"
    return {
        "openai": {"messages": ended},
        "taubench": {"task_id": 1, "reward": 1.0, "info": {}, "traj": ended, "trial": 0},
        "trl": {"prompt": messages[:1], "completion": ended[1:]},
        "verl": {
            "input": "user\nhi\nassistant\n",
            "output": f"{text}\nuser\n<tool_response>\nopen now\n</tool_response>\nassistant\n{SECRET}done",
            "score": 1.0,
            "step": 1,
        },
        "sharegpt": {
            "conversations": [
                {"from": "human", "value": "hi"},
                {"from": "gpt", "value": f"{SECRET}Thought: hm\nAction: open"},
                {"from": "human", "value": "open now"},
            ]
        },
        "word2world": {
            "messages": [
                {"role": "system", "content": "A house."},
                {"role": "user", "content": f"{SECRET}open"},
                {"role": "assistant", "content": "open now [SUCCESS]"},
            ]
        },
    }


@pytest.mark.parametrize("name", rows())
def test_no_reader_leaves_a_thought_in_what_a_world_model_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([rows()[name]]))
    (trajectory,) = read(path, name)
    for transition in expand([trajectory]):
        prompt = render(transition, load("rwml")).messages
        assert "SECRET" not in str(prompt)
        assert "open" in str(prompt)
    first = trajectory.turns[0].action
    assert "SECRET" in (first.thought or "")
    message = action_message(first, 0)
    assert str(message["content"]).startswith(SECRET.strip())  # in the agent's own prompts
    if name != "verl":  # whose decoded text has no white space before a call
        assert str(message["content"]).startswith(SECRET)


def test_rollouts_take_calls_from_what_follows_the_thought() -> None:
    action = read_action({"content": f"<think>{TAGGED}?</think>\n{TAGGED}"})
    assert [(call.name, call.arguments) for call in action.calls] == [("open", {"door": "</think>"})]
    assert (action.text, action.thought) == ("", f"<think>{TAGGED}?</think>\n")
