"""`wm lab prompts`: variants, rendered prompts, lengths, and mistakes in one line."""

import json
from pathlib import Path

import pytest

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


def test_variants_with_their_stages_and_lengths(wm):
    result = wm.json("lab", "prompts", "mcp")
    assert [row["variant"] for row in result["variants"]] == [f"v{n}" for n in range(12)]
    assert [row["stages"] for row in result["variants"][:3]] == [["rl"], ["cpt"], ["sft"]]
    assert all(row["characters"] > 500 for row in result["variants"])
    assert [row["variant"] for row in wm.json("lab", "prompts", "mcp", "--stage", "rl")["variants"]] == ["v0"]
    _, line = wm.text("lab", "prompts", "rwml", "--variant", "v1").splitlines()
    assert line.split()[:3] == ["v1", "sft,", "cpt"]


@pytest.mark.host
def test_prompts_of_a_file_and_how_long_all_are(wm, source):
    result = wm.json("lab", "prompts", "rwml", "--data", source, "--count", "1", "--tokenizer", TOKENIZER)
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
    direct = wm.json("lab", "prompts", "rwml", "--data", source, "--direct", "--variant", "v0")["samples"][0]
    assert direct["variant"] == "v0"
    assert direct["target"].startswith("<think>\n\n</think>")
    assert "<think>" not in direct["messages"][-1]["content"]


def test_for_people_and_of_transitions(wm, source, tmp_path):
    wm("data", "expand", source, "--out", tmp_path / "t.jsonl")
    text = wm.text("lab", "prompts", "terminal", "--data", tmp_path / "t.jsonl", "--count", "2")
    assert text.count("turn 0, variant v0") + text.count("turn 1, variant v0") == 2
    assert "42 \\x1b[31m" in text
    assert "\x1b" not in text
    assert "transitions: 4\n" in text


@pytest.mark.host
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rwlm", "there are no prompts 'rwlm'; did you mean 'rwml'?"),
        ("./nowhere.yaml", "nowhere.yaml: cannot be read (No such file"),
        ("rwml --variant v77", "rwml: there is no variant 'v77'"),
        ("rwml --stage pre", '"pre" for --stage'),
        ("rwml --count -1", "--count is -1"),
        ("rwml --data nowhere.jsonl", "nowhere.jsonl: No such file"),
        ("rwml --data {source} --tokenizer ./nowhere", "--tokenizer ./nowhere: no tokenizer"),
    ],
)
def test_mistakes_are_one_line(wm, source, arguments, message):
    assert message in wm.error("lab", "prompts", *arguments.format(source=source).split())
