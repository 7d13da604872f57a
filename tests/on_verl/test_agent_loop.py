"""verl's tool loop with our record, driven without Ray: its own parser, tokens and limits, a server that says what we want."""

import asyncio
import itertools
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from tokenizers import normalizers
from transformers.utils import get_json_schema
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from support import agent_loop as agent_loop_support
from support import information
from support.agent_loop import TEMPLATE, call, make_tokenizer
from support.agreement import BUDGETS, TURN_BUDGET, WANTED
from support.bare_on_verl import bare
from support.information import ANSWERS, RATIOS
from support.patched import apply, copied, loaded, patch_named
from support.rows import BAD
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin, SpanError
from wm_plugin.verl.agent_loop import WorldModelLoopMixin, WorldModelToolAgentLoop, _bounded
from wm_plugin.verl.names import ERROR, INFO, MAX_TURNS, ORIGINS, RESULTS, TOOLS
from wm_plugin.verl.spans import Block, locate, make_locator, probe
from wm_plugin.worlds import not_a_tool
from wm_plugin.worlds.kit.rows import turn_limit


class Rooms:
    """Answers with what it was asked to say; deterministic."""

    def __init__(self):
        self.success, self.metrics, self.said = False, {"calls": 0}, []

    def reset(self, start, **_):
        self.start = start
        return f" You are in {start}."

    def say(self, text: str) -> str:
        """Say.

        Args:
            text: What.
        """
        self.metrics["calls"] += 1
        self.said.append(text)
        return text

    def fail(self, text: str) -> str:
        """Raise.

        Args:
            text: What.
        """
        raise RuntimeError(text)

    def get_reward(self):
        return 0.25 * len(self.said)


ROOMS = f"{__name__}:Rooms"


def rollout(turns, wm=None, tokenizer=None, **rest):
    return agent_loop_support.rollout(tokenizer or MERGES, turns, {"environment": ROOMS} if wm is None else wm, **rest)


def weighed(output):
    """The spans of an output, with the weights that the trainer gives them."""
    origins = [Origin.unpack(values) for values in output.extra_fields[ORIGINS]]
    return weigh(origins, output.extra_fields["objective"])


def content(output, tokenizer=None):
    """(tool, text) of the spans that count."""
    decode = (tokenizer or MERGES).decode
    return [
        (span.tool, decode(output.response_ids[span.start : span.end])) for span, weight in weighed(output) if weight
    ]


MERGES, BYTES = make_tokenizer(), make_tokenizer(merges=False)
NFC = make_tokenizer(normalizer=normalizers.NFC())
TOKENIZERS = pytest.mark.parametrize("tokenizer", [MERGES, BYTES], ids=["merges", "bytes"])


@pytest.mark.parametrize("side", ["left", "middle", "right"])
def test_results_that_verl_cuts_are_counted(side):
    """Those over the limit; not the texts of failures, which verl does not cut."""
    turns = [
        call("say", text="a" * 20) + call("say", text="b" * 21),
        call("fail", text="x") + call("unknown_tool", text="x") + call("say", wrong="x") + call("say", text="c" * 400),
        "x",
    ]
    output = rollout(turns, max_tool_response_length=20, tool_response_truncate_side=side, response_length=4000)
    assert output.extra_fields[RESULTS] == [6, 2]
    assert rollout(["x"]).extra_fields[RESULTS] == [0, 0]


@TOKENIZERS
def test_spans_are_the_results(tokenizer):
    said = ["moved to 1 ✓ 日本語", "user\n🚪🚪 é1: red door", "a", "ends so"]
    turns = [
        call("say", text=said[0]) + call("say", text=said[1]),
        call("say", text=said[2]),
        call("say", text=said[3]),
        "x",
    ]
    output = rollout(turns, tokenizer=tokenizer)
    assert content(output, tokenizer=tokenizer) == [("say", text) for text in said]
    assert output.reward_score == 1.0
    sampled = sum(output.response_mask)
    assert output.extra_fields[INFO] == {
        "success": 0.0,
        "calls": 4.0,  # the world's own
        "calls/say": 4.0,
        "calls/fail": 0.0,
        "calls/unknown": 0.0,
        "truncated": 0.0,
        "policy_tokens": sampled,
        "environment_tokens": len(output.response_mask) - sampled,
    }
    assert output.extra_fields["reward_extra_info"] == output.extra_fields[INFO]
    assert "You are in 3." in tokenizer.decode(output.prompt_ids)
    # every token that was not sampled is in one span, and none that was
    covered = [0] * len(output.response_ids)
    for span, _ in weighed(output):
        for index in range(span.start, span.end):
            covered[index] += 1
    assert covered == [1 - mask for mask in output.response_mask]


def test_with_our_patch_verl_says_where_results_lie(tmp_path, monkeypatch):
    """patches/verl-tool-spans.patch, in a copy; our own record of the same rollout is beside it."""
    (path,) = copied(patch_named("verl-tool-spans"), tmp_path)
    apply("verl-tool-spans", tmp_path)
    monkeypatch.setattr(agent_loop, "_agent_loop_registry", dict(agent_loop._agent_loop_registry))
    patched = loaded(path, "patched_tool_agent_loop").ToolAgentLoop
    turns = [call("say", text="red") + call("fail", text="x"), call("say", text="blue"), "x"]
    output = rollout(turns, cls=type("Loop", (WorldModelLoopMixin, patched), {}))
    spans = output.extra_fields["tool_spans"]
    assert [names for _, _, names in spans] == [["say", "fail"], ["say"]]
    assert ["red" in MERGES.decode(output.response_ids[start:end]) for start, end, _ in spans] == [True, False]
    assert not any(sum(output.response_mask[start:end]) for start, end, _ in spans)
    ours = [Origin.unpack(values) for values in output.extra_fields[ORIGINS]]
    assert {origin.span.start for origin in ours} >= {start for start, _, _ in spans}
    assert rollout(turns, cls=patched, wm={}, tools=[]).extra_fields["tool_spans"] != []


class Echoes:
    """Another world, with another tool, and a column that has a default."""

    def reset(self, start: int = 7, **columns):
        self.said = f"{start} {sorted(columns)}"
        return f"Start at {start}."

    def repeat(self, text: str) -> str:
        """Repeat a text.

        Args:
            text: The text.
        """
        return f"{text} {self.said}"

    def get_reward(self):
        return 0.25


class Needs(Rooms):
    """Another world, whose rows need a column."""

    def reset(self, level, **columns):
        return f"Level {level}."


@pytest.mark.parametrize("row", [{}, {"level": None, "other": 1}])
def test_a_row_without_a_column_that_its_world_needs_is_one_line(row):
    wm = {"environment": {"needs": f"{__name__}:Needs", "rooms": ROOMS}}
    with pytest.raises(
        UserError, match="a row does not fit Needs.reset: missing a required argument: 'level'"
    ) as error:
        rollout(["x"], wm, row={"extra_info": {"environment": "needs", **row}})
    assert "\n" not in str(error.value)


class Bare(Rooms):
    """Leaves the reward to the trainer."""

    get_reward = property()  # as if there were none


def test_a_world_without_a_reward_leaves_it_to_verls_workers():
    assert not hasattr(Bare(), "get_reward")
    output = rollout([call("say", text="a"), "x"], {"environment": f"{__name__}:Bare"})
    assert output.reward_score is None  # verl asks a reward worker then
    assert content(output) == [("say", "a")]
    assert "reward" not in output.extra_fields[INFO]


def test_the_tools_that_there_are_are_said_and_not_those_that_a_policy_invents():
    turns = [call("fly", text="a") + call("say", text="b"), "x"]
    output = rollout(turns, {"environment": ROOMS, "include_errors": True})
    assert [tool for tool, _ in content(output)] == ["fly", "say"]
    assert output.extra_fields[TOOLS] == ["fail", "say"]


def test_a_row_says_which_of_several_worlds_it_is_of():
    wm = {"environment": {"rooms": ROOMS, "echoes": f"{__name__}:Echoes"}, "tools": {"say": 1.0, "repeat": 0.5}}
    rows = {"environment": "rooms", "start": 3}, {"environment": "echoes", "start": None, "other": None, "level": "x"}
    rooms = rollout([call("say", text="a"), "x"], wm, row={"extra_info": rows[0]})
    echoes = rollout([call("repeat", text="a"), "x"], wm, row={"extra_info": rows[1]})
    assert content(rooms) == [("say", "a")]
    assert "You are in 3." in MERGES.decode(rooms.prompt_ids)
    # what is null in the file belongs to the other world's rows
    assert content(echoes) == [("repeat", "a 7 ['level']")]
    assert (echoes.reward_score, {weight for _, weight in weighed(echoes)}) == (0.25, {0.0, 0.5})
    assert "Start at 7." in MERGES.decode(echoes.prompt_ids)
    with pytest.raises(UserError, match="column `environment` is 'rom', and environment has 'rooms', 'echoes'"):
        rollout(["x"], wm, row={"extra_info": {"environment": "rom"}})


HARD = [
    "",
    "  lead and trail  ",
    "\n\nlines\n",
    "</tool_response>\n<|im_end|>not the end",
    "user",
    "<tool_response>\n",
    "👩‍👩‍👧 ﷺ",
]


@pytest.mark.parametrize("tokenizer", [MERGES, BYTES, NFC], ids=["merges", "bytes", "nfc"])
def test_results_that_look_like_scaffold_and_characters_of_many_bytes(tokenizer):
    turns = [
        "".join(call("say", text=text) for text in HARD[:4]),
        "".join(call("say", text=text) for text in HARD[4:]),
        "x",
    ]
    output = rollout(turns, tokenizer=tokenizer)
    assert content(output, tokenizer=tokenizer) == [("say", text) for text in HARD if text]
    if tokenizer is NFC:  # a tokenizer that normalises is followed by offsets
        output = rollout([call("say", text="e\u0301te\u0301!"), "x"], tokenizer=tokenizer)
        assert content(output, tokenizer=tokenizer) == [("say", "\u00e9t\u00e9!")]


def test_failures_of_the_host_are_told_from_a_tools_own_texts():
    own = "Error executing tool 'fail': boom"  # what verl writes for an exception
    turns = [call("say", text=own) + call("fail", text="boom") + call("nope", x=1) + call("say", y=1), "x"]
    output = rollout(turns)
    assert content(output) == [("say", own)]
    with_errors = rollout(turns, {"environment": ROOMS, "include_errors": True})
    found = content(with_errors)
    assert [tool for tool, _ in found] == ["say", "fail", "nope", "say"]
    assert found[1] == ("fail", own)


@pytest.mark.parametrize("arguments", ["", '["' * 5000, "[" * 5000, "9" * 5000])
def test_arguments_that_are_not_json_are_a_failure_of_the_host(arguments):
    from verl.experimental.agent_loop.tool_parser import FunctionCall, HermesToolParser

    class Broken(WorldModelToolAgentLoop):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tool_parser = BrokenParser(self.tokenizer)

    class BrokenParser(HermesToolParser):
        async def extract_tool_calls(self, responses_ids, tools=None):
            text, calls = await super().extract_tool_calls(responses_ids, tools)
            return text, [FunctionCall(name=c.name, arguments=arguments or c.arguments[:-1]) for c in calls]

    output = rollout([call("say", text="hi"), "x"], cls=Broken)
    assert "Invalid JSON" in MERGES.decode(output.response_ids)
    assert content(output) == []


def test_selection_by_tool_and_multiplier():
    wm = {"environment": ROOMS, "tools": {"say": 0.5}}
    output = rollout([call("say", text="hi"), "x"], wm)
    assert {weight for _, weight in weighed(output)} == {0.0, 0.5}
    scaffold = {"environment": ROOMS, "content_only": False, "roles": ["tool"]}
    output = rollout([call("say", text="hi"), "x"], scaffold)
    selected = sum(span.end - span.start for span, weight in weighed(output) if weight)
    assert selected == output.response_mask.count(0)  # with verl's line break after the turn, as on TRL


@TOKENIZERS
def test_turn_information_of_a_conversation_is_that_of_the_same_data(tokenizer):
    """Weights by hand; tests/objectives/test_information.py has them of the reader, tests/on_trl/test_rollout.py of TRL."""
    wm = {"environment": "support.information:Oracle", "turn_information": True}
    output = rollout(information.said(), wm, response_length=4000, tokenizer=tokenizer)
    assert [weight for _, weight in weighed(output) if weight] == RATIOS
    assert content(output, tokenizer=tokenizer) == [("ask", answer) for answer in ANSWERS.values()]
    scaffold = rollout(information.said(), {**wm, "content_only": False}, response_length=4000, tokenizer=tokenizer)
    weights = [(span.tool, weight) for span, weight in weighed(scaffold)]
    assert [weight for weight, _ in itertools.groupby(weight for _, weight in weights)] == RATIOS


def test_a_tool_that_does_not_exist_is_named():
    wm = {"environment": ROOMS, "tools": ["sayy"]}
    output = rollout([call("say", text="hi"), "x"], wm)
    assert output.extra_fields[ERROR] == "wm.tools: there is no tool 'sayy'; did you mean 'say'?"
    assert ORIGINS not in output.extra_fields


@pytest.mark.parametrize(("column", "field", "turns"), [(1, None, 1), (2, 3, 2), (None, 2, 2), (None, None, 5)])
def test_the_turn_budget_comes_from_the_column_then_the_config(column, field, turns):
    wm = {"environment": ROOMS, "max_turns": field}
    row = {} if column is None else {MAX_TURNS: column}
    output = rollout([*[call("say", text="hi")] * 4, "end"], wm, row=row)
    assert output.extra_fields[INFO]["calls"] == turns - 1


@pytest.mark.parametrize("column", [value for value in BAD if value is not None], ids=itertools.count())
def test_a_bad_turn_budget_is_one_line_as_of_an_environment(column):
    """Zero and NaN, an empty cell of a table, are none; all else is refused in the words of `reset`."""
    wm = {"environment": ROOMS, "max_turns": 2}
    try:
        wanted, refusal = turn_limit(column, 2), None
    except UserError as error:
        wanted, refusal = None, str(error).replace("max_turns", MAX_TURNS)
    try:
        output = rollout([*[call("say", text="hi")] * 3, "end"], wm, row={MAX_TURNS: column})
    except UserError as error:
        shown = str(error)
        assert shown == refusal
    else:
        assert output.extra_fields[INFO]["calls"] == min(wanted - 1, 3)


@pytest.mark.parametrize("value", [value for value in BAD if not isinstance(value, dict | None)], ids=itertools.count())
def test_other_columns_of_a_row_that_do_not_fit_are_one_line(value):
    several = {"environment": {"rooms": ROOMS, "echoes": f"{__name__}:Echoes"}}
    refusals = []
    for wm, row, message in (
        ({}, {"extra_info": value}, "a row's columns are"),
        (several, {"extra_info": value}, "a row's columns are"),
        (several, {"extra_info": {"environment": value}}, "a row's column `environment` is"),
        (
            {},
            {"raw_prompt": [{"role": "user", "content": value}]},
            None if isinstance(value, str) else "prompt does not end",
        ),
    ):
        if message is not None:
            with pytest.raises(UserError, match=message) as refused:
                rollout(["x"], {"environment": ROOMS} | wm, row=row)
            refusals.append(str(refused.value))
    assert all("\n" not in text and len(text) < 200 for text in refusals)
    with pytest.raises(UserError, match="prompt does not end"):
        rollout(["x"], row={"raw_prompt": []})


@pytest.mark.parametrize(("row", "turns"), [({}, 4), ({MAX_TURNS: 3}, 2)])
def test_an_annealed_budget_counts_turns_in_the_environment(row, turns):
    """Without the column, as in validation, its first value; the policy's last turn, which ends, is on top."""
    wm = {"environment": "support.agreement:Walk", "turn_budget": {"start": 4, "every": 1}}
    output = rollout([*[call("walk", row=0)] * turns, "done"], wm, row=row)
    assert output.extra_fields[INFO]["turns"] == output.extra_fields[INFO]["budget"] == turns
    assert MERGES.decode(output.response_ids).endswith("done<|im_end|>")


def test_the_budgets_of_both_hosts():
    """As in tests/on_trl/test_turn_budget.py: the trainer's next column is made of what the loop says of episodes."""
    wm = {"environment": "support.agreement:Walk", "turn_budget": TURN_BUDGET}
    budget = TurnBudget(**TURN_BUDGET)
    trainer = bare(_wm_turn_budget=budget)
    found = []
    for wanted in WANTED:
        episodes, metrics = [], {}
        for turns in wanted:
            said = [*[call("walk", row=0)] * turns, "done", "done"]
            output = rollout(said, wm, row={MAX_TURNS: budget.turns + 1})
            episodes.append(output.extra_fields[INFO])
        assert {one["budget"] for one in episodes} == {budget.turns}
        assert [one["turns"] for one in episodes] == [min(turns, budget.turns) for turns in wanted]
        trainer._record_episodes(episodes, metrics)
        assert metrics["wm/turn_budget"] == metrics["wm/env/budget"]
        found.append(metrics["wm/turn_budget"])
    assert found == BUDGETS


def test_a_result_that_is_too_long_is_dropped_and_leaves_no_span():
    output = rollout(
        [call("say", text="short"), call("say", text="x" * 390), "end"], response_length=300, tokenizer=BYTES
    )
    assert content(output, tokenizer=BYTES) == [("say", "short")]
    assert output.response_mask[-1] == 1


def test_the_message_travels_only_where_select_reads_it():
    turns = [call("say", text="hi"), "x"]
    plain = rollout(turns)
    assert {Origin.unpack(values).message for values in plain.extra_fields[ORIGINS]} == {None}
    wm = {"environment": ROOMS, "select": f"{__name__}:says_hi"}
    for text, counts in (("hi", [("say", "hi")]), ("ho", [])):
        output = rollout([call("say", text=text), "x"], wm)
        assert content(output) == counts


def says_hi(span, message):
    return message["content"] == "hi"


def test_a_completion_cut_at_the_length_limit():
    wm = {"environment": ROOMS, "include_truncated": False}
    turns = [call("say", text="short"), "y" * 400]
    assert content(rollout(turns, response_length=300, tokenizer=BYTES), tokenizer=BYTES) == [("say", "short")]
    assert content(rollout(turns, wm, response_length=300, tokenizer=BYTES), tokenizer=BYTES) == []


def look(x: int) -> str:
    """Look.

    Args:
        x: Where.
    """
    if x > 5:
        raise ValueError("too far")
    return f"room {x}"


def function_tool(function):
    return FunctionTool(function.__name__, function, OpenAIFunctionToolSchema.model_validate(get_json_schema(function)))


def test_verls_own_tools_without_an_environment():
    output = rollout([call("look", x=1) + call("look", x=9), "x"], {}, tools=[function_tool(look)])
    assert content(output) == [("look", "room 1")]
    assert output.reward_score is None
    assert INFO not in output.extra_fields


def test_parallel_calls_on_one_environment_run_in_their_order():
    turns = ["".join(call("say", text=str(index)) for index in range(4)), "x"]
    for _ in range(5):
        output = rollout(turns)
        assert content(output) == [("say", str(index)) for index in range(4)]


def test_a_template_that_cannot_be_followed_is_an_error_not_a_guess():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace(
        "m.content + '\\n</tool_response>'", "(m.content | length) ~ '</tool_response>'"
    )
    output = rollout([call("say", text="hi"), "x"], tokenizer=tokenizer)
    assert "does not write a tool result's content" in output.extra_fields[ERROR]
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2")
    with pytest.raises(SpanError):
        probe(builder)


def test_spans_on_sampled_tokens_are_an_error():
    builder = create_continuous_token_builder(MERGES, hf_model_type="qwen2")
    previous = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    result = {"role": "tool", "content": "text"}
    ids = builder.tokenize_context_incremental_messages(previous, [*previous, result])
    block = Block(1, ids, [{**result, "name": "say"}], [False])
    locator = make_locator(builder, None)
    assert locate([block], [1] + [0] * len(ids), locator)[1][0].tool == "say"
    for mask in ([1] + [0] * (len(ids) - 1), [1, 1] + [0] * (len(ids) - 1)):
        with pytest.raises(SpanError, match="lie on tokens that the policy sampled"):
            locate([block], mask, locator)


@pytest.mark.parametrize(
    ("name", "arguments", "bounded"),
    [
        ("move", '{"to": "a"}', '{"to": "a"}'),
        ("move", '{"to": "\\u00e9"}', '{"to": "\\u00e9"}'),
        ("mo\ud800ve", '{"to": "\\ud800"}', '{"to": "?"}'),
        ("move", '{"to": "\ud800"}', '{"to": "?"}'),
        ("move", '{"to": ' + "[" * 220 + "]" * 220 + "}", ""),
        ("move", "no JSON \\ud800", "no JSON \\ud800"),
    ],
)
def test_calls_that_can_be_copied_and_tokenized(name, arguments, bounded):
    made = _bounded(FunctionCall(name=name, arguments=arguments))
    assert (made.name, made.arguments) == (name.replace("\ud800", "?"), bounded)


@pytest.fixture
def no_logs():
    """verl logs names as they are, and a half surrogate pair cannot be sent in a report of pytest's."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_logs")
def test_results_that_can_be_tokenized():
    loop = object.__new__(WorldModelToolAgentLoop)
    loop._wm_calls, loop._wm_port, loop._wm_cut = [], None, 0
    loop.tools, loop.max_tool_response_length = {}, 256
    called = _bounded(FunctionCall(name="\ud800", arguments="{}"))
    response, *_ = asyncio.run(loop._call_tool(called, {}, SimpleNamespace()))
    assert response.text == response.text.encode(errors="replace").decode()


class Secretive(Rooms):
    """Hides something."""

    world_context = not_a_tool(lambda self: "SECRET: the key is under the mat")


def test_no_prompt_and_no_schema_has_the_hidden_state(monkeypatch):
    seen = []

    async def generate(self, prompt_ids, **options):
        seen.append(BYTES.decode(prompt_ids))
        return await real(self, prompt_ids, **options)

    real = agent_loop_support.Server.generate
    monkeypatch.setattr(agent_loop_support.Server, "generate", generate)
    turns = [call("say", text="hi"), call("world_context"), call("world_context"), "end"]
    output = rollout(turns, {"environment": f"{__name__}:Secretive"}, tokenizer=BYTES)
    assert len(seen) >= 3
    assert "Unknown function 'world_context'" in BYTES.decode(output.response_ids)
    assert all("You are in 3." in text and "SECRET" not in text for text in seen)
    assert "SECRET" not in BYTES.decode([*output.prompt_ids, *output.response_ids])
