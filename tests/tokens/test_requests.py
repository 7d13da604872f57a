"""What is new in each request of an agent: by every family's template, on random trees of requests, and with hostile messages."""

import json
import random

import pytest

from support.templates import FAMILIES, TEMPLATES, make_tokenizer, params
from support.timing import too_slow
from wm_plugin.tokens.chat import Chat, make_locator
from wm_plugin.tokens.requests import History, Request, _extended, read_requests

pytestmark = [pytest.mark.host, pytest.mark.skipif(not TEMPLATES, reason="templates are not here")]

TASK = {"role": "user", "content": "do it"}
WITHOUT_TOOLS = {
    "cohere",
    "cohere2",
    "deepseekv3",
    "gemma",
    "gemma3",
    "phi3",
    "phi3_5",
}  # their templates refuse or drop results
# Their header of a result depends on the text beside the call: of answers with both, nothing is taken for content.
SAID = {"diffusion_gemma", "gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5"}
SAID_OF = {(name, number) for name in SAID for number in (1, 3)} | {
    ("gptoss", 1)
}  # which writes the first call's name in each
ONE_CALL = {"llama3_1", "llama3_2"}


def call(name, number):
    function = {"name": name, "arguments": '{"code": "1+1"}'}
    return {"type": "function", "id": f"call0000{number}", "function": function}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call0000{number}", "content": text}


def answer(text, *names):
    return {"role": "assistant", "content": text, "tool_calls": [call(name, at) for at, name in enumerate(names)]}


CONVERSATIONS = {
    "a result": [answer(None, "run"), result(0, "größer <b> 漢字 12")],
    "parallel results, the second call's first": [answer("hm", "run", "look"), result(1, "one"), result(0, "two two")],
    "the user": [
        {"role": "assistant", "content": "ls"},
        {"role": "user", "content": [{"type": "text", "text": "a.txt"}]},
    ],
    "a result and the user": [answer("hm", "run"), result(0, "one"), {"role": "user", "content": "go on"}],
}
NAMES = {0: ["run"], 1: ["look", "run"], 2: [None], 3: ["run", None]}


@pytest.mark.parametrize("name", params(FAMILIES))
def test_messages_are_found_behind_a_rewritten_history(name):
    """By the stock templates, also those that write the history differently once a result follows."""
    tokenizer = make_tokenizer(name)
    chat, locator = Chat(tokenizer), make_locator(tokenizer)

    def ids(messages):
        tools = {call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls") or ()}
        plain = []
        for one in messages:
            one = dict(one)
            if one["role"] == "tool":
                one["name"] = tools[one["tool_call_id"]]
            one["content"] = "a.txt" if isinstance(one["content"], list) else one["content"] or ""
            calls = [
                call | {"function": call["function"] | {"arguments": {"code": "1+1"}}}
                for call in one.get("tool_calls") or ()
            ]
            plain.append(one | ({"tool_calls": calls} if calls else {}))
        return chat.encode([chat.render(plain, add_generation_prompt=True)])[0][0]

    for number, (what, messages) in enumerate(CONVERSATIONS.items()):
        if (number != 2 and name in WITHOUT_TOOLS) or (number == 1 and name in ONE_CALL):
            continue
        prompt = ids([TASK, *messages])
        requests = [Request(ids([TASK]), [5, 6], [TASK]), Request(prompt, [7], [TASK, *messages])]
        first, second = read_requests(requests, chat, locator, {tokenizer.eos_token_id})
        assert first == (History.BEGINS, [], None, (), None)
        assert second.history is History.REWRITTEN
        if (name, number) in SAID_OF:
            assert second.spans == []
            assert "does not end as the chat template writes" in second.problem
            continue
        assert second.problem is None, what
        found = [span for span, _ in second.spans if span.content]
        assert [span.tool for span in found] == NAMES[number]
        assert [span.role for span in found] == ["user" if tool is None else "tool" for tool in NAMES[number]]
        written = [tokenizer.decode(prompt[span.start : span.end]) for span in found]
        assert written == ["a.txt" if isinstance(one["content"], list) else one["content"] for one in messages[1:]]
        assert second.spans[-1][0].end == len(prompt)


def test_the_longest_extended_request_is_that_of_a_naive_search():
    draws = random.Random(0)
    for _ in range(200):
        requests = []
        for _ in range(draws.randrange(1, 12)):
            begin = draws.choice(requests) if requests and draws.random() < 0.8 else Request([], [], [])
            whole = [*begin.prompt_ids, *begin.sampled_ids]
            prompt = whole[: draws.choice([len(whole)] * 4 + [draws.randrange(len(whole) + 1)])]
            prompt += [draws.randrange(3) for _ in range(draws.randrange(4))]
            requests.append(Request(prompt, [draws.randrange(3) for _ in range(draws.randrange(3))], []))
        naive = []
        for place, request in enumerate(requests):
            ends = [[*one.prompt_ids, *one.sampled_ids] for one in requests[:place]]
            fitting = [(len(end), -index) for index, end in enumerate(ends) if request.prompt_ids[: len(end)] == end]
            naive.append(-max(fitting)[1] if fitting else None)
        assert _extended(requests) == naive


@pytest.fixture(scope="module")
def qwen():
    tokenizer = make_tokenizer("qwen2_5")
    return tokenizer, Chat(tokenizer), make_locator(tokenizer)


def test_new_tokens_that_no_message_explains_are_scaffold_and_said(qwen):
    tokenizer, chat, locator = qwen
    for messages, reason in (
        ([TASK, answer("a"), {"role": "system", "content": "x"}], "a message with the role 'system' follows"),
        ([TASK, answer("a")], "no message of a tool or the user follows"),
        ([TASK], "no message of a tool or the user follows"),
        ([TASK, answer("a"), {"role": "user", "content": "another text"}], "does not end as the chat template writes"),
        ([TASK, answer("a"), {"role": "tool", "content": "x"}], "is a tool message without a name"),
        ([TASK, {"role": "assistant", "tool_calls": 7}, 8], "its messages cannot be read"),
    ):
        requests = [Request([1, 2], [3], [TASK]), Request([1, 2, 3, 4, 5], [6], messages)]
        _, second = read_requests(requests, chat, locator, {tokenizer.eos_token_id})
        ((span, index),) = second.spans
        assert (second.history, span, index) == (History.EXTENDS, (3, 5, "environment", None, False), None)
        assert reason in second.problem


def test_no_messages_raise(qwen):
    tokenizer, chat, locator = qwen
    draws = random.Random(1)
    values = [
        None,
        7,
        "x",
        [],
        {},
        ["assistant"],
        {"role": "tool"},
        "\ud800",
        [{"text": "a"}],
        [[[]]],
        float("nan"),
        True,
    ]
    keys = ("role", "content", "tool_calls", "tool_call_id", "name", "function", "id", "arguments")

    def value(depth=3):
        """A value of any kind, often an object of a message's names."""
        kind = draws.random()
        if depth and kind < 0.5:
            return {draws.choice(keys): value(depth - 1) for _ in range(draws.randrange(4))}
        if depth and kind < 0.7:
            return [value(depth - 1) for _ in range(draws.randrange(3))]
        return draws.choice([*values, "assistant", "user", "tool"])

    def message():
        whole = value()
        return {
            "role": draws.choice(["assistant", "user", "tool"]),
            **(whole if isinstance(whole, dict) else {"content": whole}),
        }

    for _ in range(1500):
        messages = [draws.choice([value, message, lambda: answer("x", "run")])() for _ in range(draws.randrange(4))]
        requests = [Request([1], [2], [TASK]), Request([1, 2, 3], [4], messages), Request([9, 9], [4], messages)]
        readings = read_requests(requests, chat, locator, {tokenizer.eos_token_id})
        assert len(readings) == 3
        json.dumps([reading.problem for reading in readings])


def test_time_is_linear_in_the_tokens(qwen):
    tokenizer, chat, locator = qwen
    end = {tokenizer.eos_token_id}

    def read(count):
        text = "x y " * count
        messages = [TASK, answer("a", "run"), result(0, text)]
        rendered = chat.render_results(["run"], [text])
        return [Request([1], [2], [TASK]), Request(chat.encode([rendered])[0][0], [3], messages)]

    assert not too_slow(lambda requests: read_requests(requests, chat, locator, end), read)
