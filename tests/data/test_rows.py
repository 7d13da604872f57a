"""Samples as the rows of each host, and rows as files that come back as they were."""

import json

import pyarrow.parquet
import pytest

from wm_plugin.data.rows import check_rows_out, rl_row, sft_row, token_row, write_rows
from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokens
from wm_plugin.errors import UserError

ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
ANSWER = {"role": "assistant", "content": "a"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}]
OTHER = [{"type": "function", "function": {"name": "g", "parameters": {"properties": {"y": {"type": "integer"}}}}}]
COLUMNS = {"target": "t", "observer": "tool", "tool": "f", "task_id": "1", "trajectory": "1#x", "turn": 3}


def sample(messages, train, tools=()):
    return Sample(messages, train, tools=tools, columns=COLUMNS)


def calling(arguments):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
    }


def test_messages_to_train_on():
    one = sample([*ASKED, ANSWER], [False, False, True])
    assert sft_row(one, "trl", single=True) == {"prompt": ASKED, "completion": [ANSWER]}
    assert sft_row(one, "verl", single=True) == {"messages": [*ASKED, ANSWER]}
    several = sample([*ASKED, ANSWER, ASKED[1], ANSWER], [False, False, True, False, True], TOOLS)
    assert sft_row(several, "trl", single=False) == {"messages": list(several.messages), "tools": json.dumps(TOOLS)}
    assert sft_row(several, "verl", single=False) == {"messages": list(several.messages), "tools": TOOLS}
    row = sft_row(sample([*ASKED, ANSWER, ASKED[1], ANSWER], [False] * 4 + [True]), "trl", single=True)
    assert row["prompt"] == [*ASKED, ANSWER, ASKED[1]]  # history is no matter for a completion


@pytest.mark.parametrize(("host", "single"), [("trl", True), ("trl", False), ("verl", True), ("verl", False)])
def test_what_a_host_would_count_otherwise_needs_tokens(host, single):
    train = [False, False, True, False, single and host == "trl"]
    with pytest.raises(UserError, match="give a tokenizer, and the rows are tokens"):
        sft_row(sample([*ASKED, ANSWER, ASKED[1], ANSWER], train), host, single=single)


def test_tokens_are_the_same_for_both():
    tokens = Tokens([1, 2, 3], [0, 1, 0])
    assert token_row(tokens, "trl") == {"input_ids": [1, 2, 3], "assistant_masks": [0, 1, 0]}
    assert token_row(tokens, "verl") == {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]}


def test_prompts_with_a_target():
    asked = sample(ASKED, [False, False])
    assert rl_row(asked, "trl", index=0, split="train", data_source="wm_rwml") == {"prompt": ASKED, **COLUMNS}
    rest = {name: value for name, value in COLUMNS.items() if name != "target"}
    assert rl_row(asked, "verl", index=4, split="test", data_source="wm_rwml") == {
        "data_source": "wm_rwml",
        "prompt": ASKED,
        "ability": "world_model",
        "reward_model": {"style": "rule", "ground_truth": "t"},
        "extra_info": {"index": 4, "split": "test", **rest},
    }


def test_arguments_are_json_text_so_that_parquet_invents_no_keys(tmp_path):
    messages = [
        ASKED[1],
        calling({"x": 1}),
        {"role": "tool", "content": "1"},
        calling({"y": [None]}),
        calling('{"z": 1}'),
    ]
    rows = [sft_row(sample(messages, [m["role"] == "assistant" for m in messages]), "verl", single=False)]
    write_rows(rows, tmp_path / "x.parquet")
    (back,) = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    calls = [m["tool_calls"][0]["function"]["arguments"] for m in back["messages"] if m["tool_calls"]]
    assert calls == ['{"x": 1}', '{"y": [null]}', '{"z": 1}']


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_files_hold_the_rows(tmp_path, suffix):
    rows = [token_row(Tokens([1, 2, 151643], [0, 1, 1]), "trl"), token_row(Tokens([], []), "trl")] * 700
    path = tmp_path / f"x.{suffix}"
    assert write_rows(iter(rows), path) == 1400
    lines = (
        (json.loads(line) for line in path.open())
        if suffix == "jsonl"
        else pyarrow.parquet.read_table(path).to_pylist()
    )
    assert list(lines) == rows
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"type": "object", "properties": {}}, "cannot hold these rows"), ({"maximum": 10**25}, "more than 64 bits")],
)
def test_tools_that_parquet_cannot_hold(tmp_path, parameters, message):
    tool = {"type": "function", "function": {"name": "t", "parameters": parameters}}
    with pytest.raises(UserError, match=message):
        write_rows(iter([{"messages": ASKED, "tools": [tool]}]), tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_tools_that_parquet_would_change_are_refused(tmp_path):
    rows = [{"messages": ASKED, "tools": tools} for tools in (TOOLS, OTHER)]
    with pytest.raises(UserError, match="column 'tools' holds objects with different keys"):
        write_rows(rows, tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())
    write_rows(rows[:1], tmp_path / "x.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist() == rows[:1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no sample is left to write"),
        ([{"turn": 1}, {"turn": "x"}], "values of different types"),
        ([{"a": 1}] * 1000 + [{"b": 1}], "row 1000 has columns that the first rows have not"),
        ([{"a": "\ud800"}], "a row holds half a surrogate pair"),
    ],
)
def test_rows_that_do_not_fit_leave_no_file(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        write_rows(rows, tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "host", "form", "message"),
    [
        ("x.csv", "trl", "sft", "ends in .jsonl or .parquet"),
        ("x.jsonl", "verl", "sft", "verl's SFT reads parquet only"),
        ("/dev/null/x.jsonl", "trl", "rl", "/dev/null is no folder"),
    ],
)
def test_names_that_no_host_reads(tmp_path, name, host, form, message):
    with pytest.raises(UserError, match=message):
        check_rows_out(tmp_path / name, host, form)
    check_rows_out(tmp_path / "x.jsonl", "verl", "rl")
