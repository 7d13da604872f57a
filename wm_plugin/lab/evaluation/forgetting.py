"""What a training made a model forget: general benchmarks before and after it (RWML, table 3), by lm-eval.

lm-eval runs the benchmarks, in a process of its own, one benchmark at a time, so that a run that was killed goes on with the next
one; its results are read here, those that users made themselves, too. Where it logged its samples, both models are compared
question by question, and else by the standard errors that it gives.
"""

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

from wm_plugin.data import files
from wm_plugin.data.predictions import same_settings
from wm_plugin.errors import MissingExtraError, UserError, nearest, shown
from wm_plugin.lab.evaluation.compare import Ratio, compare
from wm_plugin.lab.evaluation.measures import Evaluation, Measure
from wm_plugin.untrusted import LARGEST, loads, number

CONFIGS = ("rwml", "wmact")
# The metric that stands for a benchmark, as lm-eval names it; of any other the first one.
METRICS = {
    "mmlu_redux_generative": "exact_match,default",
    "ifeval": "prompt_level_strict_acc,none",
    "minerva_math500": "math_verify,none",
    "gsm8k_cot_zeroshot": "exact_match,flexible-extract",
    "gpqa_diamond_cot_zeroshot": "exact_match,flexible-extract",
    "mmlu_pro": "exact_match,custom-extract",
    "aime24": "exact_match,none",
    "aime25": "exact_match,none",
}
_SETTINGS, _MODEL = "lm_eval.json", "model.json"
_WEIGHTS = (".safetensors", ".bin", ".json")
_NO_ANSWER = "[invalid]"  # what lm-eval's filters write where a reply has no answer
_95, _99 = 1.959964, 2.575829  # standard errors of an interval
_DEEPEST = 20  # of groups in groups
_MOST = 10_000  # tasks and members of groups of a file; each task may be looked up in each group


@dataclass(frozen=True)
class Score:
    """A model's result on one benchmark.

    Attributes:
        metric: with lm-eval's filter, such as "exact_match,none".
        error: the standard error; None where there is none.
        count: how many questions.
        settings: what must be the same before and after.
        answers: the metric of each question by its benchmark and id; empty where no samples were logged, or not for all.
        unanswered: replies without an answer, which the metric takes for wrong.
    """

    metric: str
    value: float
    error: float | None
    count: int
    settings: Mapping[str, Any]
    answers: Mapping[tuple[str, str], float] = field(default_factory=dict)
    unanswered: int = 0


def config(name_or_path: str) -> dict[str, Any]:
    """A config of lm-eval: one of `CONFIGS`, or a YAML file.

    Raises:
        UserError: there is none, or it names no tasks.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"{name_or_path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    elif name_or_path in CONFIGS:
        text = (resources.files("wm_plugin.lab.evaluation") / f"forgetting_{name_or_path}.yaml").read_text(
            encoding="utf-8"
        )
    else:
        raise UserError(f"there is no config {name_or_path!r}{nearest(name_or_path, CONFIGS)}; your own go by path")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{name_or_path}: no YAML ({' '.join(str(error).split())[:200]})") from None
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) and task for task in tasks):
        raise UserError(f"{name_or_path}: has no list of tasks; write tasks: [gsm8k, ...] as in lm-eval's own configs")
    return dict(value)


def check_installed() -> None:
    """Raise MissingExtraError where lm-eval, which runs the benchmarks, is not installed."""
    if find_spec("lm_eval") is None:
        raise MissingExtraError("running benchmarks", "lm-eval", "forgetting")


def run(
    model: str, folder: Path, settings: Mapping[str, Any], *, backend: str = "hf", limit: int | None = None
) -> None:
    """Run benchmarks on a model. Those whose results are in the folder are not run again.

    Args:
        settings: a config of lm-eval.
        backend: the name of lm-eval's model class, such as hf or vllm.
        limit: questions of a benchmark; for a try.

    Raises:
        UserError: lm-eval failed; or the folder has results of other settings.
    """
    for task in settings["tasks"]:
        place = folder / _safe(task)
        own = {"model": backend, **settings, "tasks": [task], "limit": limit}
        arguments = own.get("model_args")
        own["model_args"] = {**(arguments if isinstance(arguments, dict) else {}), "pretrained": model}
        same_settings(place / _SETTINGS, own, "a benchmark")
        same_settings(place / _MODEL, {"files of the model": _files(model)}, "a benchmark")  # it may be trained again
        if any(place.rglob("results_*.json")):
            continue
        command = [
            sys.executable,
            "-m",
            "lm_eval",
            "run",
            "--config",
            str(place / _SETTINGS),
            "--output_path",
            str(place),
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2)  # our own output may be JSON
        if done.returncode or not any(place.rglob("results_*.json")):
            raise UserError(
                f"lm-eval did not finish {task} on {model} (exit code {done.returncode}); its messages are above"
            )


def _files(model: str) -> dict[str, list[int]]:
    """The size and the time of each file of a local model; a name of a hub has none."""
    inside = (path for path in sorted(Path(model).glob("*")) if path.suffix in _WEIGHTS and path.is_file())
    return {path.name: [status.st_size, status.st_mtime_ns] for path in inside if (status := path.stat())}


def scores(path: str | Path) -> dict[str, Score]:
    """The results that lm-eval wrote to a file, or below a folder, by benchmark; the latest of each.

    The members of a group, such as MMLU's subjects, are in the group's score.

    Raises:
        UserError: there are none, or they are damaged.
    """
    path = Path(path)
    paths = sorted(path.rglob("results_*.json"), key=lambda one: (one.name, str(one))) if path.is_dir() else [path]
    if not paths:
        raise UserError(f"{path}: has no results_*.json of lm-eval")
    made: dict[str, Score] = {}
    for one in paths:  # their names have the time
        made.update(_read(one))
    return made


def evaluation(
    after: Mapping[str, Score],
    before: Mapping[str, Score] | None,
    *,
    subject: str,
    data: str,
    settings: Mapping[str, Any],
    seed: int = 0,
) -> Evaluation:
    """`score` of each benchmark (by "benchmark") and their mean; with results from before, `score_before` and `score_difference`.

    Raises:
        UserError: no benchmark is in both; or one was run with other settings before.
    """
    names = [name for name in after if before is None or name in before]
    if not names:
        raise UserError("the results from before and after have no benchmark in common")
    measures, failures = _of_one("score", after, names), {}
    for which, results in (("after", after), ("before", before or {})):
        if unanswered := sum(results[name].unanswered for name in names if name in results):
            failures[f"no answer in the reply, {which}"] = unanswered
    notes = []
    if before is not None:
        measures += _of_one("score_before", before, names)
        measures += [_difference(name, after[name], before[name], seed) for name in names]
        measures.append(_mean("score_difference", [one.value for one in measures if one.name == "score_difference"]))
        if left := sorted({*after, *before} - {*names}):
            notes.append(f"only before or only after, and not compared: {', '.join(left)}")
    return Evaluation("forgetting", subject, data, dict(settings), measures, failures, notes)


def rows(after: Mapping[str, Score], before: Mapping[str, Score] | None) -> Iterator[dict[str, Any]]:
    """A row for each question that was logged."""
    for name, score in after.items():
        others = before[name].answers if before and name in before else {}
        for (task, question), value in score.answers.items():
            earlier = {"score_before": others[task, question]} if (task, question) in others else {}
            yield {"benchmark": name, "task": task, "question": question, "scores": {"score": value, **earlier}}


def _read(path: Path) -> dict[str, Score]:
    try:
        if path.exists() and not path.is_file():  # a pipe has no end
            raise UserError(f"{path}: cannot be read (no file)")
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: too large for results of lm-eval")
        value = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        value = None
    results = {**_object(value, "groups"), **_object(value, "results")}
    if not results or not all(isinstance(one, dict) for one in results.values()):
        raise UserError(f"{path}: no results of lm-eval (it has no results by task)")
    groups = _members(_object(value, "group_subtasks"))
    if len(results) + sum(map(len, groups.values())) > _MOST:
        raise UserError(f"{path}: has more than {_MOST:,} tasks, which no run of lm-eval has")
    inside = {member for members in groups.values() for member in members}
    made = {name: _score(path, value, name, results[name], groups) for name in results if name not in inside}
    scored = {name: score for name, score in made.items() if score is not None}
    if not scored:
        raise UserError(f"{path}: has no metric of any benchmark")
    return scored


def _score(
    path: Path, value: Mapping[str, Any], name: str, metrics: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> Score | None:
    """The score of one benchmark; None where it has no metric."""
    known = [key for key, one in metrics.items() if "," in key and "_stderr," not in key and _number(one) is not None]
    metric = METRICS.get(name, "")
    metric = metric if metric in known else next(iter(known), "")
    if not metric:
        return None
    label, _, filtered = metric.partition(",")
    leaves = _leaves(name, groups)
    counts = {leaf: _at(value, "n-samples", leaf, "effective") for leaf in leaves}
    count = sum(one for one in counts.values() if type(one) is int)
    settings = {
        "metric": metric,
        "questions": counts,
        "shots": {leaf: _at(value, "n-shot", leaf) for leaf in leaves},
        "version": {leaf: _at(value, "versions", leaf) for leaf in leaves},
        "gen_kwargs": _at(value, "config", "gen_kwargs"),
    }
    answers, unanswered = _answers(path, leaves, label, filtered)
    if len(answers) != count:
        answers = {}
    error = _number(metrics.get(f"{label}_stderr,{filtered}"))
    return Score(metric, _number(metrics[metric]) or 0.0, error, count, settings, answers, unanswered)


def _answers(path: Path, leaves: Sequence[str], metric: str, filtered: str) -> tuple[dict[tuple[str, str], float], int]:
    """The metric of each question in the samples beside a results file, and how many replies have no answer."""
    stamp = path.stem.removeprefix("results_")
    answers: dict[tuple[str, str], float] = {}
    unanswered = 0
    for leaf in leaves:
        samples = path.parent / f"samples_{leaf}_{stamp}.jsonl"
        if Path(leaf).name != leaf or not samples.is_file():
            return {}, 0
        for record in files.lines(samples):
            row = record.value if isinstance(record.value, dict) else {}
            score = _number(row.get(metric))
            if row.get("filter", filtered) == filtered and score is not None:
                answers[leaf, str(row.get("doc_id"))] = score
                unanswered += row.get("filtered_resps") == [_NO_ANSWER]
    return answers, unanswered


def _of_one(name: str, results: Mapping[str, Score], benchmarks: Sequence[str]) -> list[Measure]:
    """A measure for each benchmark, with the interval of its standard error, and their mean."""
    measures = []
    for benchmark in benchmarks:
        one = results[benchmark]
        low, high = _limits(one.value, one.error, _95)
        note = "replies without an answer are wrong ones in every score" if one.unanswered else ""
        place, failed = ("benchmark", benchmark, low, high), one.unanswered
        measures.append(Measure(name, one.value, _unit(one.value), one.count, *place, failed, one.value, note))
    return [*measures, _mean(name, [measure.value for measure in measures])]


def _mean(name: str, values: Sequence[float | None]) -> Measure:
    numbers = [value for value in values if value is not None]
    mean = sum(numbers) / len(numbers)
    return Measure(name, mean, _unit(mean), len(numbers))


def _difference(benchmark: str, after: Score, before: Score, seed: int) -> Measure:
    for key in after.settings:
        if after.settings[key] != before.settings[key]:
            values = f"{shown(before.settings[key])} before and {shown(after.settings[key])} after"
            raise UserError(f"{benchmark}: {key} is {values}; run both alike")
    value = after.value - before.value
    common = list(after.answers)
    if len(common) > 1 and after.answers.keys() == before.answers.keys():
        ones = torch.ones(len(common), dtype=torch.float64)
        ratios = [
            Ratio(torch.tensor([one.answers[key] for key in common], dtype=torch.float64), ones)
            for one in (after, before)
        ]
        paired = compare(ratios[0], ratios[1], common, seed)
        if math.isclose(paired.difference, value, abs_tol=1e-6):
            note = f"after - before, question by question, 99% interval: {paired.verdict}"
            return _of_difference(benchmark, value, after.count, (paired.low, paired.high), note)
    both = None if after.error is None or before.error is None else math.hypot(after.error, before.error)
    note = "after - before, 99% interval by the standard errors: log samples of both for a narrower one"
    return _of_difference(benchmark, value, after.count, _limits(value, both, _99), note if both is not None else "")


def _of_difference(
    benchmark: str, value: float, count: int, limits: tuple[float | None, float | None], note: str
) -> Measure:
    return Measure("score_difference", value, _unit(value), count, "benchmark", benchmark, *limits, note=note)


def _limits(value: float, error: float | None, width: float) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - width * error, value + width * error)


def _unit(value: float) -> str:
    return "share" if -1 <= value <= 1 else "points"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else number(value)


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _object(value: Any, key: str) -> dict[str, Any]:
    inner = _at(value, key)
    return inner if isinstance(inner, dict) else {}


def _members(groups: Mapping[str, Any]) -> dict[str, list[str]]:
    """The members of groups; tasks alone have none."""
    return {
        name: [member for member in members if isinstance(member, str) and member != name]
        for name, members in groups.items()
        if isinstance(members, list)
    }


def _leaves(name: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group, in groups inside it, too; the task itself if it is none."""
    level, leaves = [name], []
    for _ in range(_DEEPEST):
        leaves += [one for one in level if not groups.get(one)]
        level = list(dict.fromkeys(member for one in level for member in groups.get(one, ())))
    return list(dict.fromkeys(leaves))


def _safe(task: str) -> str:
    """A task's name as the name of a folder."""
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in task).lstrip(".") or "task"
