"""What a model's message says it does."""

import json
from types import SimpleNamespace

import pytest

from wm_plugin.data.errors import RowError
from wm_plugin.data.schema import Action, Call, Context, Trajectory, Turn
from wm_plugin.worlds.agents.policies import LocalPolicy, read_action

MOVE = Call(name="move", arguments={"direction": "U"})


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ({"content": "Hm."}, Action(text="Hm.")),
        ({"content": None}, Action()),
        (
            {
                "content": "",
                "tool_calls": [{"id": "x", "function": {"name": "move", "arguments": '{"direction": "U"}'}}],
                "reasoning_content": "Up?",
            },
            Action(calls=(MOVE,), thought="Up?"),
        ),
        (
            {"content": 'Up. <tool_call>\n{"name": "move", "arguments": {"direction": "U"}}\n</tool_call>'},
            Action(text="Up.", calls=(MOVE,)),
        ),
        (
            {"content": '<tool_call>{"name": "move", "arguments": {"direction": "U"}}</tool_call>' * 2},
            Action(calls=(MOVE, MOVE)),
        ),
        ({"content": "<tool_call>move</tool_call>"}, Action(text="<tool_call>move</tool_call>")),
        (
            {"content": '<tool_call>{"arguments": {}}</tool_call>'},
            Action(text='<tool_call>{"arguments": {}}</tool_call>'),
        ),
        ({"content": "<tool_call>" + "[" * 5000}, Action(text="<tool_call>" + "[" * 5000)),
        (
            {"tool_calls": [{"function": {"name": "move", "arguments": '{"dire'}}]},
            Action(calls=(Call(name="move", arguments='{"dire'),)),
        ),
    ],
)
def test_messages_are_read_as_actions(message, action):
    assert read_action(message) == action


def test_a_call_without_a_name_is_refused():
    with pytest.raises(RowError):
        read_action({"tool_calls": [{"function": {}}]})


@pytest.mark.host
@pytest.mark.parametrize("error", [RecursionError, ValueError, IndexError])
def test_a_local_models_turn_that_does_not_parse_is_text(error):
    class Tokenizer:
        response_template, eos_token = {}, "<end>"

        def decode(self, ids, **_):
            return "[" * 1000

        def parse_response(self, ids, **_):
            raise error

    pytest.importorskip("transformers")
    policy = LocalPolicy(SimpleNamespace(tokenizer=Tokenizer()))
    trajectory = SimpleNamespace(context=SimpleNamespace(action_space=()))
    assert policy.read([1], [1], trajectory) == Action(text="[" * 1000)


@pytest.mark.host
def test_half_surrogates_of_a_call_reach_no_tokenizer():
    """JSON can write half of an emoji, so that a policy's call may hold one in the next turn's prompt."""

    class Tokenizer:
        def apply_chat_template(self, messages, **_):
            return json.dumps(messages, ensure_ascii=False)

        def __call__(self, text, **_):
            return SimpleNamespace(input_ids=list(text.encode()))

    pytest.importorskip("transformers")
    call = read_action({"content": '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>'}).calls[0]
    assert call.arguments == {"a": "\ud83d"}
    policy = LocalPolicy(SimpleNamespace(tokenizer=Tokenizer()))
    trajectory = Trajectory(turns=(Turn(action=Action(calls=(call,))),), context=Context())
    assert b'{"a": "?"}' in bytes(policy.prompt_ids(trajectory))


@pytest.mark.host
def test_arguments_that_are_no_mapping_stop_no_template():
    """Some templates write arguments one by one."""

    class Tokenizer:
        def apply_chat_template(self, messages, **_):
            calls = [call["function"]["arguments"] for message in messages for call in message["tool_calls"]]
            return "".join(f"{name}={value};" for arguments in calls for name, value in arguments.items())

        def __call__(self, text, **_):
            return SimpleNamespace(input_ids=text)

    pytest.importorskip("transformers")
    calls = (MOVE, *(Call(name="move", arguments=value) for value in ("U", ["U"], None, 3)))
    policy = LocalPolicy(SimpleNamespace(tokenizer=Tokenizer()))
    trajectory = Trajectory(turns=(Turn(action=Action(calls=calls)),), context=Context())
    assert policy.prompt_ids(trajectory) == "direction=U;arguments=U;arguments=['U'];arguments=3;"
    with pytest.raises(KeyError):  # what fails for another reason still does
        policy.prompt_ids(Trajectory(turns=(Turn(action=Action(text="Hm.")),)))
