from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")
import trl

from support.on_trl import make_tokenizer
from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import Chat, make_locator, named_results, plain_messages, turns
from wm_plugin.tokens.spans import SpanError, ToolBlock

pytestmark = pytest.mark.host

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
NAMES = ("run_code", "lookup_doc")
CONTENTS = ("</tool_response>\n OUT[1] ", "größer 漢字")


def template(name: str) -> str:
    path = TEMPLATES / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"trl {trl.__version__} has no template {name}")
    return path.read_text()


def call(name, arguments, **fields):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_training", "glm4moe_training", "llama3_1", "gptoss"])
def test_result_ids_are_those_that_trl_appends_and_hold_the_contents(name):
    tokenizer = make_tokenizer()
    text = template(name)
    ids = Chat(tokenizer, text).result_ids(NAMES, CONTENTS)

    host = SimpleNamespace(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=text, chat_template_kwargs={}, _is_vlm=False
    )
    messages = [{"role": "tool", "name": n, "content": c} for n, c in zip(NAMES, CONTENTS, strict=True)]
    assert ids == trl.GRPOTrainer._get_tool_suffix_ids(host, messages)

    ((first, second),) = make_locator(tokenizer, text).locate([ToolBlock(NAMES, CONTENTS, ids)])
    found = [tokenizer.decode(ids[start:end]) for start, end in (first, second)]
    if name in ("llama3_1", "gptoss"):  # they write JSON
        assert found[0] == CONTENTS[0].replace("\n", "\\n")
    else:
        assert found == list(CONTENTS)


def test_chat_template_kwargs_reach_the_template():
    text = "{% for m in messages %}{% if m.content %}{{ m.role[0] ~ mark ~ m.content }}{% endif %}{% endfor %}"
    chat = Chat(make_tokenizer(), text, {"mark": "~"})
    assert chat.render([{"role": "user", "content": "x"}]) == "u~x"
    assert chat.render_results(["a"], ["y"]).endswith("t~y")


def test_encode_gives_the_first_character_of_each_token():
    ((ids, starts),) = Chat(make_tokenizer()).encode(["aé<tool_call>b"])
    assert len(ids) == 5
    assert starts == [0, 1, 1, 2, 13]


def test_a_template_that_changes_a_call_when_its_result_follows_is_refused():
    with pytest.raises(SpanError, match="not prefix-preserving"):
        Chat(make_tokenizer(), template("qwen3")).result_ids(["run_code"], ["x"])


def test_a_template_that_fails_names_the_conversation():
    with pytest.raises(UserError, match=r"a conversation of user, assistant \(TemplateError: no calls\)"):
        Chat(make_tokenizer(), "{{ raise_exception('no calls') }}").result_ids(["run_code"], ["x"])


def test_openai_messages_become_those_that_templates_take():
    messages = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("f", '{"a": 1}', id="1"), call("g", "{not", id="2")],
        },
        {"role": "tool", "tool_call_id": "2", "content": "second"},
        {"role": "tool", "tool_call_id": "1", "content": "first"},
        {"role": "assistant", "content": "done", "tool_calls": None},
    ]
    plain = plain_messages(messages)
    assert plain[0]["content"] == ""
    assert [c["function"]["arguments"] for c in plain[0]["tool_calls"]] == [{"a": 1}, "{not"]
    assert "tool_calls" not in plain[3]
    assert [m.get("name") for m in named_results(plain)] == [None, "g", "f", None]
    assert messages[0]["content"] is None  # the caller's are kept


def test_results_without_ids_take_the_names_of_the_calls_in_order():
    messages = plain_messages([{"role": "assistant", "tool_calls": [call("f", {}), call("g", {})]}])
    messages += [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    assert [m.get("name") for m in named_results(messages)] == [None, "f", "g"]
    with pytest.raises(UserError, match="message 4 .* without a name"):
        named_results([*messages, {"role": "tool", "content": "3"}])


def test_turns_put_the_results_of_one_turn_together():
    roles = ["assistant", "tool", "tool", "assistant"]
    messages = [{"role": role, "name": "f", "content": str(index)} for index, role in enumerate(roles)]
    assert [(role, [m["content"] for m in group]) for role, group in turns(messages)] == [
        ("assistant", ["0"]),
        ("tool", ["1", "2"]),
        ("assistant", ["3"]),
    ]


@pytest.mark.parametrize(
    ("roles", "error"),
    [
        ([], "does not begin with an assistant"),
        (["tool"], "does not begin with an assistant"),
        (["assistant", "user"], "message 2 .* role 'user'.*spans"),
        (["assistant", "assistant"], "message 2 .* second assistant"),
    ],
)
def test_turns_refuse_what_a_tool_loop_does_not_make(roles, error):
    with pytest.raises(UserError, match=error):
        list(turns([{"role": role, "name": "f", "content": ""} for role in roles]))


def test_a_result_that_is_not_text_is_refused():
    messages = [{"role": "assistant"}, {"role": "tool", "name": "f", "content": [{"type": "image"}]}]
    with pytest.raises(UserError, match="result of 'f'"):
        list(turns(messages))


@pytest.mark.parametrize("arguments", ['["' * 5000, "[" * 5000, "9" * 5000, '{"a'])
def test_arguments_that_nobody_can_parse_stay_text(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = plain_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
