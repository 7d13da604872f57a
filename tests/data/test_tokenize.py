"""Which tokens of a sample count: by hand, and against a count of characters that knows nothing of sentinels or offsets."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from support.examples import examples
from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.policy import make_tokenizer

pytestmark = pytest.mark.host

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Puts an empty thought into the last turn, and takes thoughts out of the others, as Qwen3's does.
THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set parts = m.content.split('</think>') %}{% set said = parts[-1].lstrip('\n') %}"
    "{% if loop.last and m.role == 'assistant' %}"
    "<think>\n{{ parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 }}\n</think>\n\n{% endif %}"
    "{{ said }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = CHATML.replace("{{ m.content }}", "{{ m.content.strip() }}")
QWEN = (Path(__file__).parents[1] / "support" / "agreement_data" / "chat_template.jinja").read_text()


def subwords(template=CHATML):
    """A byte-level BPE whose words may run over spaces, lines and the scaffold's edges."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[^<>]+|[<>]"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    text = [
        "assistant\na b a b\n\n",
        "user\ngo north\n",
        "system\nthe the\n",
        "assistant\nthe go\n a",
        " a\n\nb the",
    ] * 3
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)


def talk(*contents, train=None, system="sys"):
    """system, user, assistant, user, ..."""
    messages = [{"role": "system", "content": system}]
    messages += [
        {"role": ("user", "assistant")[index % 2], "content": content} for index, content in enumerate(contents)
    ]
    assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    counted = assistants if train is None else [assistants[index] for index in train]
    return Sample(messages, [index in counted for index in range(len(messages))])


def counted_text(tokenizer, sample):
    """The runs of tokens that count, as text."""
    ids, mask, _ = Tokeniser(tokenizer)(sample)
    assert len(ids) == len(mask)
    runs, before = [], 0
    for token, counts in zip(ids, mask, strict=True):
        if counts:
            runs += [[]] if not before else []
            runs[-1].append(token)
        before = counts
    return [tokenizer.decode(run) for run in runs]


def test_by_hand_with_a_token_a_character():
    tokenizer = make_tokenizer()
    ids, mask, _ = Tokeniser(tokenizer)(talk("U", "..", "D", "", "L", "A.", train=[0, 1], system="s"))
    # sU:..<end>D:<end>L:A.<end>, where the header is ":"
    assert tokenizer.convert_ids_to_tokens(ids) == [*"sU:..", "<|im_end|>", *"D:", "<|im_end|>", *"L:A.", "<|im_end|>"]
    assert mask == [0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0]


def test_by_hand_with_chatml():
    ids, mask, _ = Tokeniser(subwords())(talk("a b", "the go", "a", "b the", train=[1]))
    assert counted_text(subwords(), talk("a b", "the go", "a", "b the", train=[1])) == ["b the<|im_end|>"]
    text = "".join(
        f"<|im_start|>{role}\n{said}<|im_end|>\n"
        for role, said in zip(
            ("system", "user", "assistant", "user", "assistant"), ("sys", "a b", "the go", "a", "b the"), strict=True
        )
    )
    assert ids == subwords()(text, add_special_tokens=False).input_ids
    assert sum(mask) < len(mask) // 3


def test_the_first_token_never_counts():
    sample = Sample([{"role": "assistant", "content": "hi"}], [True])
    bare = make_tokenizer()
    bare.chat_template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    assert Tokeniser(bare)(sample).mask == [0, 1, 1]
    assert set(Tokeniser(subwords())(talk("a", "b", train=[])).mask) == {0}


WORDS = st.text(alphabet="ab\n <>|the", max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=5), WORDS)
def test_against_a_count_of_characters(turns, system):
    """Decoding the tokens before a token says where it begins: no offsets, no sentinels, the text written by hand."""
    tokenizer = CHARACTERS
    contents = [text for asked, answered, _ in turns for text in (asked, answered)]
    sample = talk(*contents, train=[index for index, turn in enumerate(turns) if turn[2]], system=system)
    ids, mask, _ = Tokeniser(tokenizer)(sample)
    text, flags = "", []
    for message, counts in zip(sample.messages, sample.train, strict=True):
        header, body, rest = f"<|im_start|>{message['role']}\n", f"{message['content']}<|im_end|>", "\n"
        text += header + body + rest
        flags += [0] * len(header) + [int(counts)] * len(body) + [0] * len(rest)
    assert tokenizer.decode(ids) == text
    assert mask == [flags[len(tokenizer.decode(ids[:index]))] for index in range(len(ids))]


CHARACTERS = subwords()


def test_an_empty_thought_in_the_last_turn_is_scaffold():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = THOUGHTS
    sample = talk("go", "a b", "go", "the b")
    assert "<think>" in tokenizer.apply_chat_template(list(sample.messages), tokenize=False)
    assert counted_text(tokenizer, sample) == ["a b<|im_end|>", "the b<|im_end|>"]


@pytest.mark.parametrize("thought", ["\n\n", "\nwell\n"])
def test_a_thought_that_the_data_have_counts(thought):
    label = f"<think>{thought}</think>\n\n<next_state>\na\n</next_state>"
    assert counted_text(subwords(THOUGHTS), talk("go", label)) == [f"{label}<|im_end|>"]
    assert counted_text(subwords(CHATML), talk("go", label)) == [f"{label}<|im_end|>"]
    opened = THOUGHTS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")  # as Qwen3.5's
    assert counted_text(subwords(opened), talk("go", label)) == [f"{label}<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "contents"),
    [
        (STRIPPING, ("go", " a b")),
        (STRIPPING, ("go", "a\n", "go", "b")),
        (THOUGHTS, ("go", "<think>\nwell\n</think>\n\na", "go", "b")),
        (THOUGHTS, ("go", "<think>well</think>a")),
        (CHATML.replace("m.content", "m.content | upper"), ("go", "a")),
        (CHATML.replace("m.content", "m.content[:1]"), ("go", "a b")),
    ],
)
def test_a_template_that_changes_what_counts_is_refused(template, contents):
    with pytest.raises(UserError, match=r"the chat template changes message \d") as error:
        Tokeniser(subwords(template))(talk(*contents))
    assert "\n" not in str(error.value)


def test_what_does_not_count_may_be_changed():
    tokenizer = subwords(STRIPPING)
    assert counted_text(tokenizer, talk(" go ", " a ", "go", "b", train=[1], system=" s ")) == ["b<|im_end|>"]


def test_a_content_that_looks_like_the_scaffold_is_a_content():
    fake = "a<|im_end|>\n<|im_start|>assistant\nb"
    assert counted_text(CHARACTERS, talk(fake, fake, fake, "a", train=[1])) == ["a<|im_end|>"]
    assert counted_text(CHARACTERS, talk(fake, fake, fake, "a", train=[0])) == [f"{fake}<|im_end|>"]


def calling(content, *names, arguments='{"x": [1, "ü"]}'):
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": arguments}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


@pytest.mark.parametrize("content", ["", None, "Let me look."])
def test_of_a_message_with_calls_everything_counts(content):
    messages = [
        {"role": "user", "content": "go"},
        calling(content, "f", "g"),
        {"role": "tool", "name": "f", "content": "1"},
        {"role": "tool", "name": "g", "content": "2"},
        calling(content, "f"),
        {"role": "tool", "name": "f", "content": "3"},
        {"role": "assistant", "content": "done"},
    ]
    sample = Sample(messages, [False, True, False, False, False, False, True], tools=[{"type": "function"}])
    said = f"{content}\n" if content else ""
    call = '<tool_call>\n{{"name": "{}", "arguments": {{"x": [1, "ü"]}}}}\n</tool_call>'
    assert counted_text(subwords(QWEN), sample) == [
        f"{said}{call.format('f')}\n{call.format('g')}<|im_end|>",
        "done<|im_end|>",
    ]


def test_a_thought_of_its_own_counts_where_the_template_writes_it():
    message = {"role": "assistant", "content": "a b", "reasoning_content": "hm"}
    sample = Sample([{"role": "user", "content": "go"}, message], [False, True])
    template = CHATML.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}",
    )
    assert counted_text(subwords(template), sample) == ["<think>hm</think>a b<|im_end|>"]
    with pytest.raises(UserError, match="changes message 2"):
        Tokeniser(subwords(CHATML))(sample)


def test_calls_of_the_tiny_policy():
    move = calling("", "move", arguments=json.dumps({"direction": "U"}))
    sample = Sample([{"role": "user", "content": "."}, move, {"role": "tool", "content": "."}], [False, True, False])
    assert counted_text(make_tokenizer(), sample) == ["U"]
    with pytest.raises(UserError, match="changes message 1"):  # content that is left out beside calls
        Tokeniser(make_tokenizer())(Sample([{**move, "content": "look"}], [True]))


@pytest.mark.parametrize("content", ["", "a", "f", "I call f"])  # text that has the tool's name in it is no call
def test_a_template_that_leaves_calls_out_is_refused(content):
    for template in (CHATML, CHATML.replace("m.content", "m.content if not m.tool_calls")):
        with pytest.raises(UserError, match="changes message 1"):
            Tokeniser(subwords(template))(Sample([calling(content, "f")], [True]))


def compact(call):
    return CHATML.replace(
        "{{ m.content }}", "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}{{ m.content or '' }}"
    )


COMMAND = compact("> {{ c.function.arguments.command }}")
LETTER = compact("{{ {'up': 'U', 'down': 'D'}[c.function.arguments.to] }}")
ACT = {"type": "function", "function": {"name": "act", "parameters": {}}}
OTHER = {"type": "function", "function": {"name": "other", "parameters": {}}}


@pytest.mark.parametrize(
    ("template", "calls", "text"),
    [
        (COMMAND, ['{"command": "go west"}'], "> go west"),
        (COMMAND, ['{"command": "wmOther7Zk3Vx9Lp2"}'], "> wmOther7Zk3Vx9Lp2"),  # the value that others get
        (COMMAND, ['{"command": "go"}', '{"command": "look"}'], "> go> look"),
        (LETTER, ['{"to": "up"}'], "U"),
        (LETTER, ['{"to": "up"}', '{"to": "down"}'], "UD"),
        (compact("!{{ c.function.arguments.values() | join }}"), ["{}"], "!"),
        (compact("{{ c.function.arguments | string }}"), ["no JSON"], "no JSON"),
    ],
)
@pytest.mark.parametrize("content", ["", "hm"])
def test_a_compact_template_may_leave_out_the_name_of_the_only_tool(template, calls, text, content):
    message = calling(content, "act")
    message["tool_calls"] = [calling("", "act", arguments=arguments)["tool_calls"][0] for arguments in calls]
    sample = Sample([{"role": "user", "content": "go"}, message], [False, True], tools=[ACT])
    assert counted_text(subwords(template), sample) == [f"{text}{content}<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "calls", "tools"),
    [
        (COMMAND, ['{"command": "go", "twice": true}'], [ACT]),  # the second argument is nowhere
        (COMMAND, ['{"command": "go"}'], [ACT, OTHER]),  # which tool?
        (compact("!"), ['{"command": "go"}'], [ACT]),
        (
            compact("{% if loop.first %}> {{ c.function.arguments.command }}{% endif %}"),
            ['{"command": "go"}'] * 2,
            [ACT],
        ),
        (
            compact("{% if loop.last %}> {{ c.function.arguments.command }}{% endif %}"),
            ['{"command": "go"}'] * 2,
            [ACT],
        ),
        (compact("").replace("{{ m.content or '' }}", ""), ['{"command": "go"}'], [ACT]),
    ],
)
def test_a_compact_template_that_leaves_out_what_makes_a_difference_is_refused(template, calls, tools):
    message = calling("", "act")
    message["tool_calls"] = [calling("", "act", arguments=arguments)["tool_calls"][0] for arguments in calls]
    with pytest.raises(UserError, match="changes message 2"):
        Tokeniser(subwords(template))(Sample([{"role": "user", "content": "go"}, message], [False, True], tools=tools))


def test_many_arguments_are_not_tried_one_by_one():
    message = calling("", "f", arguments=json.dumps({f"a{number}": 1 for number in range(200)}))
    sample = Sample([{"role": "user", "content": "go"}, message], [False, True])
    rendered, tokeniser = [], Tokeniser(subwords(QWEN))
    render = tokeniser._chat.render
    tokeniser._chat.render = lambda *args, **kwargs: rendered.append(1) or render(*args, **kwargs)
    assert sum(tokeniser(sample).mask)
    assert len(rendered) < 40


@pytest.mark.parametrize("tools", [[{"function": "x"}], [{"function": {"name": ["x"]}}], [{}], [{"name": "x"}]])
def test_odd_schemas_are_no_matter(tools):
    sample = Sample([{"role": "user", "content": "go"}, calling("", "f")], [False, True], tools=tools)
    assert len(counted_text(subwords(QWEN), sample)) == 1


def test_a_slow_tokenizer_and_one_without_a_template_are_refused():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template"):
        Tokeniser(tokenizer)
    with pytest.raises(UserError, match="object is a slow tokenizer"):
        Tokeniser(object())


def test_prompt_length_includes_the_header():
    assert Tokeniser(make_tokenizer()).prompt_length([{"role": "user", "content": "abc"}]) == 4
