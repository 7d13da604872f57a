"""`wm data filter --mask-values --profile` and `wm data expand --history-tokens`."""

import json
from itertools import islice

import pytest

from wm_plugin.cli import main
from wm_plugin.data.transitions import read_transitions

SIMULATION = {
    "id": "a",
    "task_id": "1",
    "messages": [
        {"role": "assistant", "content": "Hi, who are you?"},
        {"role": "user", "content": "Jo Doe."},
        {"role": "assistant", "tool_calls": [{"id": "x", "name": "find", "arguments": {"name": "Jo Doe"}}]},
        {"role": "tool", "id": "x", "requestor": "assistant", "content": '{"id": "abc123", "orders": [17]}'},
        {"role": "assistant", "content": "Found you."},
        {"role": "user", "content": "Good."},
    ],
}
TAU = {
    "info": {"environment_info": {"domain_name": "shop", "policy": "Be kind."}},
    "tasks": [{"id": "1", "user_scenario": {"instructions": {"known_info": "You are Jo Doe."}}}, {"id": "2"}],
    "simulations": [SIMULATION, {**SIMULATION, "id": "b", "task_id": "2"}],
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "tau2.json"
    path.write_text(json.dumps(TAU))
    return path


@pytest.fixture
def tokenizer(tmp_path):
    """A token a word."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return path


def run(capsys, *arguments):
    code = main.main(["data", *map(str, arguments)])
    return code, capsys.readouterr()


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_values_become_schemas_and_profiles_are_told(capsys, source, tmp_path):
    out = tmp_path / "f.jsonl"
    arguments = ("filter", source, "--out", out, "--filters", "too_short", "--mask-values", "--profile")
    code, printed = run(capsys, *arguments, "--json")
    result = json.loads(printed.out.splitlines()[-1])
    assert code == 0
    assert (result["trajectories"], result["masked"], result["profiles"]) == (2, 2, 1)
    first, second = rows(out)
    assert "abc123" not in out.read_text()
    assert first["turns"][1]["observations"][0]["data"] == {"schema": True}
    assert "You are Jo Doe." in first["context"]["simulation_instruction"]
    assert second["context"]["simulation_instruction"] == ""
    code, printed = run(capsys, *arguments)
    assert "2 results of tools are schemas now" in printed.out
    assert "1 trajectories say what their users know of themselves" in printed.out


def test_without_the_flags_values_stay(capsys, source, tmp_path):
    out = tmp_path / "f.jsonl"
    code, printed = run(capsys, "filter", source, "--out", out, "--json")
    result = json.loads(printed.out.splitlines()[-1])
    assert code == 0
    assert not {"masked", "profiles"} & set(result)
    assert "abc123" in out.read_text()


@pytest.mark.host
def test_history_in_tokens(capsys, source, tokenizer, tmp_path):
    out = tmp_path / "t.jsonl"
    for limit, lengths in ((5, [0, 0, 0]), (6, [0, 1, 0]), (8, [0, 1, 1]), (14, [0, 1, 2])):
        # the greeting and its reply have 4 + 2 words; the call and its result, `find {"name": "Jo Doe"}`, 4 + 4
        arguments = ("expand", source, "--out", out, "--history-tokens", limit, "--tokenizer", tokenizer)
        code, _ = run(capsys, *arguments)
        assert code == 0
        assert [len(transition.history) for transition in islice(read_transitions(out), 3)] == lengths


@pytest.mark.host
def test_half_a_surrogate_pair_has_tokens(capsys, tokenizer, tmp_path):
    source = tmp_path / "half.jsonl"
    texts = (("user", "a"), ("assistant", "b"), ("user", "x\ud800"), ("assistant", "b"), ("user", "c"))
    source.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in texts]}))
    code, printed = run(capsys, "inspect", source, "--tokenizer", tokenizer)
    assert (code, printed.err) == (0, "")


@pytest.mark.host
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--history-tokens", "5"), "wm: --history-tokens TOKENS and --tokenizer PATH go together: give both or none"),
        (("--tokenizer", "t"), "wm: --history-tokens TOKENS and --tokenizer PATH go together: give both or none"),
        (
            ("--history-tokens", "5", "--tokenizer", "./nowhere"),
            "wm: --tokenizer ./nowhere: no tokenizer, there is no such folder",
        ),
        (("--history-tokens", "5", "--tokenizer", "{tokenizer}", "--history", "2"), "wm: argument --history"),
        (("--history-tokens", "-1", "--tokenizer", "{tokenizer}"), "wm: history_tokens is -1"),
    ],
)
def test_mistakes(capsys, source, tokenizer, tmp_path, options, message):
    options = [option.format(tokenizer=tokenizer) for option in options]
    arguments = ("expand", source, "--out", tmp_path / "t.jsonl", *options)
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "t.jsonl").exists()
