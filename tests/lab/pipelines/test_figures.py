import json

import pytest

pytest.importorskip("transformers")

from wm_plugin.recipes.pipelines import figures

from wm_plugin.data.write import write
from wm_plugin.lab.tiny.__main__ import main as make_policy
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.lab.tiny.rollouts import rollouts
from wm_plugin.runtime.command import exit_code

pytestmark = pytest.mark.host


def test_the_tokens_that_count_are_the_results_alone():
    tokenizer, episodes = make_tokenizer(), list(rollouts(3, 0))
    ids, masks = figures.tokens_of(tokenizer, episodes)
    for episode, row, mask in zip(episodes, ids, masks, strict=True):
        results = "".join(one.text for turn in episode.turns for one in turn.observations)
        assert tokenizer.decode([token for token, counts in zip(row, mask, strict=True) if counts]) == results


def run(*arguments):
    return exit_code(lambda: figures.main(list(map(str, arguments))), "figures")


def test_a_line_a_model_and_a_table(tmp_path, capsys):
    make_policy(["--out", str(tmp_path / "policy"), "--random"])
    write(rollouts(4, 1), tmp_path / "held.jsonl")
    out = tmp_path / "figures.jsonl"
    own = ("--model", tmp_path / "policy", "--out", out, "--text-tokens", 64, "--episodes", tmp_path / "held.jsonl")
    assert run(*own, "--name", "start") == 0
    assert run(*own, "--name", "after", "--played", tmp_path / "held.jsonl") == 0
    start, after = map(json.loads, out.read_text().splitlines())
    assert "success" not in start
    assert after["nll_held"] == start["nll_held"] == pytest.approx(4.6, abs=1)  # 98 tokens, nothing learnt
    assert (after["episodes"], after["results_held"]) == (4, start["results_held"])
    assert 0.5 <= after["success"] <= 1  # half of them are an expert's
    assert after["perplexity"] > 10
    capsys.readouterr()
    assert run("--table", out, "--out", tmp_path / "figures.md") == 0
    lines = (tmp_path / "figures.md").read_text().splitlines()
    assert capsys.readouterr().out.splitlines() == lines
    assert [line.split(" | ")[0] for line in lines] == ["| name", lines[1], "| start", "| after"]
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "x"], "--model and --name are missing"),
        (["--table", "missing.jsonl"], "missing.jsonl"),
        (["--table", "other.jsonl"], "other.jsonl, row 1: no figures of a model, with its name"),
        (["--table", "broken.jsonl"], "broken.jsonl, row 0: "),
        (["--model", "./missing", "--name", "x"], "there is no such folder"),
    ],
)
def test_mistakes_are_a_line(tmp_path, capsys, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"name": "x"}\n[1]\n')
    (tmp_path / "broken.jsonl").write_text("{\n")
    assert run("--out", "out", *flags) == 2
    assert words in capsys.readouterr().err
