"""`wm data prompts`: variants, rendered prompts, lengths, and mistakes in one line."""

import json
from pathlib import Path

import pytest

from wm_plugin.cli import main

TOKENIZER = Path(__file__).parents[1] / "support" / "agreement_data"
CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
ROW = {
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "42 \u001b[31m"},
        {"role": "assistant", "content": "It is 42."},
        {"role": "user", "content": "</next_state>"},
    ],
    "id": 7,
}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "id": 8}) + "\n")
    return path


def run(capsys, *arguments):
    code = main.main(["data", "prompts", *map(str, arguments)])
    return code, capsys.readouterr()


def result_of(capsys, *arguments):
    code, printed = run(capsys, *arguments, "--json")
    assert code == 0, printed.err
    return json.loads(printed.out.splitlines()[-1])


def test_variants_with_their_stages_and_lengths(capsys):
    result = result_of(capsys, "mcp")
    assert [row["variant"] for row in result["variants"]] == [f"v{n}" for n in range(12)]
    assert [row["stages"] for row in result["variants"][:3]] == [["rl"], ["cpt"], ["sft"]]
    assert all(row["characters"] > 500 for row in result["variants"])
    assert [row["variant"] for row in result_of(capsys, "mcp", "--stage", "rl")["variants"]] == ["v0"]
    code, printed = run(capsys, "rwml", "--variant", "v1")
    assert code == 0
    assert [line.split()[:3] for line in printed.out.splitlines()[1:]] == [["v1", "sft", "cpt"]]


@pytest.mark.host
def test_prompts_of_a_file_and_how_long_all_are(capsys, source):
    result = result_of(capsys, "rwml", "--data", source, "--count", "1", "--tokenizer", TOKENIZER)
    assert (result["transitions"], result["rejected"]) == (4, {"tag in observation": 2})
    (sample,) = result["samples"]
    assert sample["messages"][-1]["role"] == "user"
    assert sample["target"] == "<next_state>\n42 \u001b[31m\n</next_state>"
    assert result["lengths"]["characters"]["target"] == dict.fromkeys(
        ("min", "median", "p95", "max"), len(sample["target"])
    )
    characters = sum(len(message["content"]) for message in sample["messages"])
    assert result["lengths"]["characters"]["prompt"]["min"] <= characters
    assert result["lengths"]["tokens"]["prompt"]["min"] > 0
    direct = result_of(capsys, "rwml", "--data", source, "--direct", "--variant", "v0")["samples"][0]
    assert direct["variant"] == "v0"
    assert direct["target"].startswith("<think>\n\n</think>")
    assert "<think>" not in direct["messages"][-1]["content"]


def test_for_people_and_of_transitions(capsys, source, tmp_path):
    main.main(["data", "expand", str(source), "--out", str(tmp_path / "t.jsonl")])
    capsys.readouterr()
    code, printed = run(capsys, "terminal", "--data", tmp_path / "t.jsonl", "--count", "2")
    assert code == 0
    assert printed.out.count("turn 0, variant v0") + printed.out.count("turn 1, variant v0") == 2
    assert "42 \\x1b[31m" in printed.out
    assert "\x1b" not in printed.out
    assert "4 transitions" in printed.out


@pytest.mark.host
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rwlm",), "wm: there are no prompts 'rwlm'; did you mean 'rwml'?"),
        (("./nowhere.yaml",), "wm: ./nowhere.yaml: No such file"),
        (("rwml", "--variant", "v77"), "wm: rwml: there is no variant 'v77'"),
        (("rwml", "--stage", "pre"), "wm: stage is 'pre'"),
        (("rwml", "--count", "-1"), "wm: --count is -1"),
        (("rwml", "--data", "nowhere.jsonl"), "wm: nowhere.jsonl: No such file"),
        (
            ("rwml", "--data", "{source}", "--tokenizer", "./nowhere"),
            "wm: --tokenizer ./nowhere: no tokenizer",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, source, arguments, message):
    code, printed = run(capsys, *(argument.format(source=source) for argument in arguments))
    assert code == 2
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
