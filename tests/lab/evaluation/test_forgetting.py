"""Results of lm-eval in its real format, written by hand, and a stand-in for lm-eval itself."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.lab.evaluation import forgetting
from wm_plugin.lab.evaluation.forgetting import config, evaluation, rows, run, scores

DATE = "2026-08-21T19-56-54.123456"
KEY = "exact_match,flexible-extract"


def write(folder, answers, *, stderr=0.25, samples=True, date=DATE, **more):
    """The results of gsm8k_cot_zeroshot for these answers, as lm-eval 0.4.10 writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    task = "gsm8k_cot_zeroshot"
    mean = sum(answers) / len(answers)
    results = {
        "results": {
            task: {
                "alias": task,
                "exact_match,strict-match": 0.0,
                "exact_match_stderr,strict-match": 0.0,
                KEY: mean,
                "exact_match_stderr,flexible-extract": stderr,
            }
        },
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "dataset_path": "openai/gsm8k", "output_type": "generate_until"}},
        "versions": {task: 3.0},
        "n-shot": {task: 0},
        "higher_is_better": {task: {"exact_match": True}},
        "n-samples": {task: {"original": 1319, "effective": len(answers)}},
        "config": {"model": "hf", "model_args": {"pretrained": "x"}, "limit": None, "gen_kwargs": {"temperature": 1.0}},
        "git_hash": None,
        "date": 1.0,
        "task_hashes": {},
        "model_source": "hf",
        "model_name": "x",
    }
    for key, value in more.items():
        results[key.replace("_", "-")] = value
    (folder / f"results_{date}.json").write_text(json.dumps(results, indent=2))
    lines = []
    for name in ("strict-match", "flexible-extract"):
        for number, answer in enumerate(answers):
            score = answer if name == "flexible-extract" else 0.0
            lines.append(
                {"doc_id": number, "doc": {"question": "?"}, "target": "1", "filter": name, "metrics": ["exact_match"]}
                | {"resps": [["It is 1"]], "filtered_resps": ["1" if answer else "[invalid]"], "exact_match": score}
            )
    if samples:
        (folder / f"samples_{task}_{date}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def compared(after, before=None, **more):
    return evaluation(scores(after), before and scores(before), subject="after", data="", settings={}, **more)


def test_before_and_after_question_by_question(tmp_path):
    after, before = write(tmp_path / "a" / "x__y", [1, 0, 1, 0]), write(tmp_path / "b", [1, 1, 1, 0])
    result = compared(tmp_path / "a", before)
    score = result.measure("score", "benchmark", "gsm8k_cot_zeroshot")
    assert (score.value, score.count, score.unit) == (0.5, 4, "share")
    assert (score.low, score.high) == (pytest.approx(0.5 - 1.959964 * 0.25), pytest.approx(0.5 + 1.959964 * 0.25))
    assert (score.failed, score.with_failed) == (2, 0.5)
    assert result.measure("score_before", "benchmark", "gsm8k_cot_zeroshot").value == 0.75
    difference = result.measure("score_difference", "benchmark", "gsm8k_cot_zeroshot")
    assert difference.value == -0.25
    assert difference.low >= -1
    assert difference.high == 0
    assert "question by question, 99% interval" in difference.note
    assert [result.measure(name).value for name in ("score", "score_before", "score_difference")] == [0.5, 0.75, -0.25]
    assert result.failures == {"no answer in the reply, after": 2, "no answer in the reply, before": 1}
    row = list(rows(scores(after), scores(before)))[1]
    assert (row["question"], row["scores"]) == ("1", {"score": 0.0, "score_before": 1.0})


def test_without_samples_the_standard_errors_decide(tmp_path):
    after, before = (
        write(tmp_path / name, answers, stderr=error, samples=False)
        for name, answers, error in [("a", [1, 0], 0.3), ("b", [1, 1], 0.4)]
    )
    difference = compared(after, before).measure("score_difference", "benchmark", "gsm8k_cot_zeroshot")
    assert (difference.value, difference.low, difference.high) == (
        -0.5,
        pytest.approx(-0.5 - 2.575829 * 0.5),
        pytest.approx(-0.5 + 2.575829 * 0.5),
    )
    nothing = write(tmp_path / "c", [1, 0], stderr="N/A", samples=False)
    difference = compared(nothing, before).measure("score_difference", "benchmark", "gsm8k_cot_zeroshot")
    assert (difference.value, difference.low) == (-0.5, None)


def test_samples_that_are_not_all_there_are_not_paired(tmp_path):
    after, before = write(tmp_path / "a", [1, 0]), write(tmp_path / "b", [1, 1])
    samples = next(before.glob("samples_*"))
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:3]))
    assert (
        "standard errors" in compared(after, before).measure("score_difference", "benchmark", "gsm8k_cot_zeroshot").note
    )


def test_one_model_alone_and_the_latest_results(tmp_path):
    write(tmp_path, [0, 0])
    write(tmp_path, [1, 0], date="2026-09-01T00-00-00.000000")
    result = compared(tmp_path)
    assert [(one.name, one.group, one.value) for one in result.measures] == [
        ("score", "gsm8k_cot_zeroshot", 0.5),
        ("score", "", 0.5),
    ]
    assert compared(tmp_path / f"results_{DATE}.json").measure("score").value == 0


def test_a_group_is_one_benchmark(tmp_path):
    groups = {"mmlu_redux_generative": ["stem", "law"], "stem": ["maths"], "law": [], "maths": []}
    results = {
        "mmlu_redux_generative": {
            "alias": "mmlu_redux",
            "exact_match,default": 0.75,
            "exact_match_stderr,default": 0.2,
        },
        "stem": {"alias": " - stem", "exact_match,default": 0.5},
        "maths": {"alias": "  - maths", "exact_match,default": 0.5},
        "law": {"alias": " - law", "exact_match,default": 1.0},
    }
    value = {
        "results": {name: results[name] for name in ("maths", "law")},
        "groups": {name: results[name] for name in ("mmlu_redux_generative", "stem")},
        "group_subtasks": groups,
        "n-samples": {"maths": {"original": 2, "effective": 2}, "law": {"original": 2, "effective": 2}},
    }
    (tmp_path / f"results_{DATE}.json").write_text(json.dumps(value))
    for name, answers in (("maths", [1, 0]), ("law", [1, 1])):
        lines = [
            {"doc_id": number, "filter": "default", "exact_match": answer} for number, answer in enumerate(answers)
        ]
        (tmp_path / f"samples_{name}_{DATE}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (made,) = scores(tmp_path).items()
    assert made[0] == "mmlu_redux_generative"
    assert (made[1].value, made[1].count, len(made[1].answers)) == (0.75, 4, 4)
    assert "question by question" in compared(tmp_path, tmp_path).measure("score_difference", "benchmark", made[0]).note


def test_the_mean_is_of_one_unit_where_higher_is_better(tmp_path):
    def results(folder, accuracy, perplexity, bleu, errors):
        value = {"results": {"gsm8k": {"exact_match,none": accuracy}, "wikitext": {"word_perplexity,none": perplexity}}}
        value["results"] |= {"wmt": {"bleu,none": bleu}, "wer": {"wer,none": errors}}
        value["higher_is_better"] = {"wer": {"wer": False}}  # an older lm-eval does not say it of all
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "results_x.json").write_text(json.dumps(value))
        return tmp_path / folder

    result = compared(results("a", 0.5, 30.0, 31.2, 0.25), results("b", 0.75, 29.5, 31.0, 0.5))
    assert [result.measure(name).value for name in ("score", "score_before", "score_difference")] == [0.5, 0.75, -0.25]
    assert result.measure("score").count == 1
    units = {one.group: one.unit for one in result.measures if one.name == "score_difference"}
    assert units == {"gsm8k": "share", "wikitext": "perplexity", "wmt": "points", "wer": "score", "": "share"}
    assert result.notes == [
        "in no mean, since their scale or direction differs: "
        "wikitext (perplexity, lower is better), wmt (points), wer (score, lower is better)"
    ]


def test_groups_that_hold_each_other_end(tmp_path):
    value = {"results": {"a": {"acc,none": 1.0}, "b": {"acc,none": 1.0}, "c": {"acc,none": 1.0}}}
    value["group_subtasks"] = {"a": ["b"], "b": ["a"], "c": ["a"]}
    (tmp_path / "results_x.json").write_text(json.dumps(value))
    assert list(scores(tmp_path)) == ["c"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n_shot": {"gsm8k_cot_zeroshot": 4}}, "shots is"),
        ({"versions": {"gsm8k_cot_zeroshot": 2.0}}, "version is"),
        ({"n_samples": {"gsm8k_cot_zeroshot": {"effective": 9}}}, "questions is"),
        ({"config": {"gen_kwargs": {"temperature": 0.0}}}, "gen_kwargs is"),
    ],
)
def test_other_settings_before_are_a_line(tmp_path, more, words):
    with pytest.raises(UserError, match="^gsm8k_cot_zeroshot: [^\n]*; run both alike$") as error:
        compared(write(tmp_path / "a", [1, 0]), write(tmp_path / "b", [1, 0], **more))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no results of lm-eval"),
        ("[]", "no results of lm-eval"),
        ('{"results": {"a": 3}}', "no results of lm-eval"),
        ('{"results": {}}', "no results of lm-eval"),
        ('{"results": {"a": {"alias": "a", "acc,none": "N/A"}}}', "no metric of any benchmark"),
    ],
)
def test_files_that_are_no_results(tmp_path, text, words):
    (tmp_path / "results_x.json").write_text(text)
    with pytest.raises(UserError, match=words):
        scores(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        scores(tmp_path / "gone.json")


def test_nothing_in_common(tmp_path):
    (tmp_path / "results_x.json").write_text('{"results": {"other": {"acc,none": 0.5}}}')
    with pytest.raises(UserError, match="no benchmark in common"):
        compared(write(tmp_path / "a", [1, 0]), tmp_path / "results_x.json")


@pytest.mark.parametrize("name", forgetting.CONFIGS)
def test_ready_configs(name):
    made = config(name)
    assert set(made["tasks"]) <= set(forgetting.METRICS)
    assert made["gen_kwargs"]["temperature"] == 1.0
    assert made["gen_kwargs"]["max_gen_toks"] == 16 * 1024


def test_own_configs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("tasks: [gsm8k]\n")
    assert config(str(path)) == {"tasks": ["gsm8k"]}
    for text, words in [("tasks: gsm8k", "no list of tasks"), ("[", "not YAML"), ("- x", "no list of tasks")]:
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            config(str(path))
    with pytest.raises(UserError, match="did you mean 'rwml'"):
        config("rwmk")
    with pytest.raises(UserError, match="cannot be read"):
        config("./gone.yaml")


FAKE = """
import json, pathlib, sys
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
config = json.loads(pathlib.Path(arguments["--config"]).read_text())
(task,) = config["tasks"]
with open("runs.txt", "a") as file:
    file.write(f"{config['model_args']['pretrained']} {task} {config['model']} {config['limit']}\\n")
if task == "broken":
    sys.exit(3)
folder = pathlib.Path(arguments["--output_path"], "x__y")
folder.mkdir(parents=True)
(folder / "results_2026.json").write_text(json.dumps({"results": {task: {"acc,none": 0.5}}}))
"""


@pytest.fixture
def harness(tmp_path, monkeypatch):
    """A package of lm-eval's name that writes results and keeps a list of its runs."""
    (tmp_path / "packages" / "lm_eval").mkdir(parents=True)
    (tmp_path / "packages" / "lm_eval" / "__init__.py").write_text("")
    (tmp_path / "packages" / "lm_eval" / "__main__.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs.txt"


def test_a_run_goes_on_where_it_was(tmp_path, harness):
    three = {"tasks": ["one", "broken", "t/wo"]}
    for _ in range(2):
        with pytest.raises(UserError, match=r"lm-eval did not finish broken on m,=x \(exit code 3\)"):
            run("m,=x", tmp_path / "out", three, backend="vllm", limit=5)
    assert harness.read_text().splitlines() == ["m,=x one vllm 5", "m,=x broken vllm 5", "m,=x broken vllm 5"]
    run("m,=x", tmp_path / "out", {"tasks": ["one", "t/wo"]}, backend="vllm", limit=5)
    assert list(scores(tmp_path / "out")) == ["one", "t/wo"]
    with pytest.raises(UserError, match="a benchmark of other settings"):
        run("other", tmp_path / "out", three, backend="vllm", limit=5)


def test_without_lm_eval_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr(forgetting, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"running benchmarks needs lm-eval: pip install .*\[forgetting\]"):
        forgetting.check_installed()


def test_a_model_that_was_trained_again_is_another_one(tmp_path, monkeypatch):
    def fake(command, **_):
        (Path(command[-1]) / "results_1.json").write_text("{}")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(forgetting.subprocess, "run", fake)
    weights = tmp_path / "m" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"old")
    for _ in range(2):
        run(str(weights.parent), tmp_path / "out", {"tasks": ["one"]})
    weights.write_bytes(b"trained again")
    with pytest.raises(UserError, match="other settings"):
        run(str(weights.parent), tmp_path / "out", {"tasks": ["one"]})
