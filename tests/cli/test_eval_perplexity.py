"""`wm lab perplexity` from files and models to a table."""

import json
import math

import pytest
import torch

from support.predictions import save_tiny
from wm_plugin.lab.evaluation.measures import read_result, read_rows

pytestmark = pytest.mark.host
VERB = ("lab", "perplexity")
TEXTS = ["The quick brown fox.", "jumps over the lazy dog", "A"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("before", 0), ("after", 1)):
        save_tiny(tmp_path / name, seed)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path


def by_hand(seed, tokens):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed).eval()
    nll = count = 0
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids[:tokens]
        with torch.no_grad():
            logps = model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        nll -= sum(float(logps[place, token]) for place, token in enumerate(ids[1:]))
        count += len(ids) - 1
    return nll / count


def test_before_and_after(wm, folder):
    arguments = (*VERB, "texts.jsonl", "--model", "after", "--before", "before", "--tokens", "8", "--out", "out")
    made = wm.json(*arguments)
    values = {(one["name"], one["group"]): one["value"] for one in made["measures"]}
    before, after = by_hand(0, 8), by_hand(1, 8)
    assert (made["ok"], made["failures"]) == (True, {"less than two tokens": 1})
    assert values["nll", ""] == pytest.approx(after, rel=1e-4)
    assert values["perplexity", "before"] == pytest.approx(math.exp(before), rel=1e-4)
    assert values["nll_difference", ""] == pytest.approx(after - before, abs=1e-4)
    assert read_result("out").as_dict() | {"ok": True} == made
    assert [row["document"] for row in read_rows("out")] == ["texts.jsonl:0", "texts.jsonl:1"]
    assert "left out: 1 (less than two tokens)" in wm.text(*arguments)  # a second time, over the first
    assert read_result("out").as_dict() | {"ok": True} == made


def test_mistakes_are_a_line(wm, folder):
    save_tiny(folder / "other")
    settings = json.loads((folder / "other" / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    letters = [token for token in vocabulary if token in "qj"]
    vocabulary[letters[0]], vocabulary[letters[1]] = vocabulary[letters[1]], vocabulary[letters[0]]
    (folder / "other" / "tokenizer.json").write_text(json.dumps(settings))
    (folder / "short.txt").write_text("A")
    for arguments, words in (
        ("gone.txt --model after", "gone.txt"),
        ("texts.jsonl --model ./gone", "--model ./gone: no tokenizer, there is no such folder"),
        ("short.txt --model after", "short.txt: no document has two tokens"),
        ("texts.jsonl --model after --tokens 1", "--tokens is 1; write a number >= 2"),
        ("texts.jsonl --model after --field body", "no row has a text in 'body'"),
        ("texts.jsonl --model after --before other", "--before reads the texts in other tokens than --model"),
    ):
        assert words in wm.error(*VERB, *arguments.split())
