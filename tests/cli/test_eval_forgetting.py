"""`wm lab forgetting` from results of lm-eval to lines."""

import json
import re

import pytest

from wm_plugin.lab.evaluation.measures import read_result

VERB = ("lab", "forgetting")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("after", 0.25), ("before", 0.5)):
        (tmp_path / name).mkdir()
        results = {"results": {"ifeval": {"alias": "ifeval", "prompt_level_strict_acc,none": value}}}
        (tmp_path / name / "results_2026.json").write_text(json.dumps(results))
    return tmp_path


def test_results_are_read_and_compared(wm):
    arguments = (*VERB, "--results", "after", "--before-results", "before", "--out", "out")
    made = wm.json(*arguments)
    assert read_result("out").as_dict() | {"ok": True} == made
    values = {(one["name"], one["group"]): one["value"] for one in made["measures"]}
    assert values["score_difference", "ifeval"] == values["score_difference", ""] == -0.25
    assert re.search(r"\nifeval .*-25%", wm.text(*arguments))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "name a model to run the benchmarks on (--model), or results of lm-eval (--results); one of them"),
        ("--results after --before x", "--before goes with --model"),
        ("--model x", "--out is missing"),
        ("--results gone", "gone: cannot be read"),
        ("--model x --out out", "running benchmarks needs lm-eval: pip install"),
    ],
)
def test_mistakes_are_a_line(wm, folder, monkeypatch, flags, words):
    monkeypatch.setattr("wm_plugin.lab.evaluation.forgetting.find_spec", lambda name: None)
    assert words in wm.error(*VERB, *flags.split())
    assert not (folder / "out").exists()
