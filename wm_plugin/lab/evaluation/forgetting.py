"""What a training made a model forget: general benchmarks before and after it (RWML, table 3), by lm-eval.

lm-eval runs the benchmarks, one at a time in a process of its own, so a killed run goes on with the next one. Its results are
read here, and so are those that users made themselves. Where it logged its samples, both models are compared question by
question, else by lm-eval's standard errors.
"""

import math
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError

from wm_plugin.data import files
from wm_plugin.data.predictions import same_settings
from wm_plugin.errors import MissingExtraError, UserError, nearest, shown
from wm_plugin.lab.evaluation.intervals import NONE, Limits, Ratio, compare
from wm_plugin.lab.evaluation.measures import Evaluation, Measure
from wm_plugin.runtime.texts import read_text, read_yaml
from wm_plugin.untrusted import number

CONFIGS = ("rwml", "wmact")
# The metric that stands for a benchmark, as lm-eval names it; other benchmarks take their first one.
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
# lm-eval's metrics of which a lower value is better, for results that do not say so
_LOWER = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter")
_AVERAGED = ("share", "points")  # units of scores of which a higher one is better; a mean is of one of them
_SETTINGS, _MODEL = "lm_eval.json", "model.json"
_WEIGHTS = (".safetensors", ".bin", ".json")
_NO_ANSWER = "[invalid]"  # what lm-eval's filters write for a reply without an answer
_95, _99 = 1.959964, 2.575829  # standard errors of an interval
_DEEPEST = 20  # of groups in groups


@dataclass(frozen=True)
class Score:
    """A model's result on one benchmark."""

    value: float
    error: float | None  # the standard error, or None
    count: int  # how many questions
    settings: Mapping[str, Any]  # what must be the same before and after
    # each question's metric by its benchmark and id; empty unless samples were logged for all of them
    answers: Mapping[tuple[str, str], float]
    unanswered: int  # replies without an answer, which the metric takes for wrong
    higher: bool | None  # whether a higher value is better; None for a group whose members differ


def config(name_or_path: str) -> dict[str, Any]:
    """Read a config for lm-eval: one of `CONFIGS`, or a YAML file."""
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    if not is_path and name_or_path not in CONFIGS:
        raise UserError(f"there is no config {name_or_path!r}{nearest(name_or_path, CONFIGS)}; your own go by path")
    value = read_yaml(Path(name_or_path) if is_path else Path(__file__).with_name(f"forgetting_{name_or_path}.yaml"))
    tasks = value.get("tasks") if isinstance(value, dict) else None
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) and task for task in tasks):
        raise UserError(f"{name_or_path}: has no list of tasks; write tasks: [gsm8k, ...] as in lm-eval's own configs")
    return dict(value)


def check_installed() -> None:
    """Raise MissingExtraError if lm-eval, which runs the benchmarks, is not installed."""
    if find_spec("lm_eval") is None:
        raise MissingExtraError("running benchmarks", "lm-eval", "forgetting")


def run(
    model: str, folder: Path, settings: Mapping[str, Any], *, backend: str = "hf", limit: int | None = None
) -> None:
    """Run benchmarks on a model. Those whose results are in the folder are not run again."""
    for task in settings["tasks"]:
        name = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in task).lstrip(".") or "task"
        place = folder / name
        own = {"model": backend, **settings, "tasks": [task], "limit": limit}
        own["model_args"] = {**(own.get("model_args") or {}), "pretrained": model}
        same_settings(place / _SETTINGS, own, "a benchmark")
        same_settings(place / _MODEL, {"files of the model": _files(model)}, "a benchmark")  # it may be trained again
        if any(place.rglob("results_*.json")):
            continue
        command = [sys.executable, "-m", "lm_eval", "run", "--config", str(place / _SETTINGS)]
        command += ["--output_path", str(place)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2)  # our own output may be JSON
        if done.returncode or not any(place.rglob("results_*.json")):
            raise UserError(
                f"lm-eval did not finish {task} on {model} (exit code {done.returncode}); its messages are above"
            )


def _files(model: str) -> dict[str, list[int]]:
    """Return the size and the time of each file of a local model; a hub's name has none."""
    inside = (path for path in sorted(Path(model).glob("*")) if path.suffix in _WEIGHTS and path.is_file())
    return {path.name: [status.st_size, status.st_mtime_ns] for path in inside if (status := path.stat())}


def scores(path: str | Path) -> dict[str, Score]:
    """Read the results that lm-eval wrote to a file, or below a folder, by benchmark; the latest of each.

    A group's members, such as MMLU's subjects, are in the group's score.
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
    """Measure the `score` of each benchmark and their mean; with results from before, `score_before` and `score_difference`.

    The mean is over benchmarks of one unit where higher is better; a note names the others.
    """
    names = [name for name in after if before is None or name in before]
    if not names:
        raise UserError("the results from before and after have no benchmark in common")
    units = {name: _unit([of[name] for of in (after, before) if of is not None]) for name in names}
    measures, failures = _scores("score", after, units), {}
    for which, results in (("after", after), ("before", before or {})):
        if unanswered := sum(results[name].unanswered for name in names if name in results):
            failures[f"no answer in the reply, {which}"] = unanswered
    averaged = _averaged(units.values())
    lower = {name: ", lower is better" if after[name].higher is False else "" for name in names}
    others = [f"{name} ({unit}{lower[name]})" for name, unit in units.items() if unit != averaged]
    notes = [f"in no mean, since their scale or direction differs: {', '.join(others)}"] if others else []
    if before is not None:
        measures += _scores("score_before", before, units)
        differences = [_difference(name, after[name], before[name], unit, seed) for name, unit in units.items()]
        measures += [*differences, *_mean("score_difference", differences)]
        if left := sorted({*after, *before} - {*names}):
            notes.append(f"only before or only after, and not compared: {', '.join(left)}")
    return Evaluation("forgetting", subject, data, dict(settings), measures, failures, notes)


def rows(after: Mapping[str, Score], before: Mapping[str, Score] | None) -> Iterator[dict[str, Any]]:
    """Make a row for each question that was logged."""
    for name, score in after.items():
        others = before[name].answers if before and name in before else {}
        for key, value in score.answers.items():
            earlier = {"score_before": others[key]} if key in others else {}
            yield {"benchmark": name, "task": key[0], "question": key[1], "scores": {"score": value, **earlier}}


class _Results(BaseModel):
    """The parts of lm-eval's results file that are read."""

    results: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    group_subtasks: dict[str, list[str]] = {}
    samples: dict[str, dict[str, Any]] = Field(default={}, alias="n-samples")
    shots: dict[str, Any] = Field(default={}, alias="n-shot")
    versions: dict[str, Any] = {}
    higher_is_better: dict[str, dict[str, Any]] = {}
    config: dict[str, Any] = {}

    def leaves(self, name: str) -> list[str]:
        """Return the tasks of a group and of groups inside it; a task is its own."""
        level, leaves = [name], []
        for _ in range(_DEEPEST):
            members = {one: [inner for inner in self.group_subtasks.get(one, ()) if inner != one] for one in level}
            leaves += [one for one in level if not members[one]]
            level = list(dict.fromkeys(inner for of in members.values() for inner in of))
        return list(dict.fromkeys(leaves))


def _read(path: Path) -> dict[str, Score]:
    text = read_text(path)
    try:
        found = _Results.model_validate_json(text)
    except ValidationError:
        found = _Results()
    results = {**found.groups, **found.results}
    if not results:
        raise UserError(f"{path}: no results of lm-eval (it has no results by task)")
    inside = {inner for name, members in found.group_subtasks.items() for inner in members if inner != name}
    made = {name: _score(path, found, name, of) for name, of in results.items() if name not in inside}
    scored = {name: score for name, score in made.items() if score is not None}
    if not scored:
        raise UserError(f"{path}: has no metric of any benchmark")
    return scored


def _score(path: Path, found: _Results, name: str, metrics: Mapping[str, Any]) -> Score | None:
    """Return one benchmark's score; None if it has no metric."""
    known = [key for key, one in metrics.items() if "," in key and "_stderr," not in key and _number(one) is not None]
    metric = METRICS.get(name, "")
    metric = metric if metric in known else next(iter(known), "")
    if not metric:
        return None
    label, _, filtered = metric.partition(",")
    leaves = found.leaves(name)
    counts = {leaf: found.samples.get(leaf, {}).get("effective") for leaf in leaves}
    count = sum(one for one in counts.values() if type(one) is int)
    settings = {
        "metric": metric,
        "questions": counts,
        "shots": {leaf: found.shots.get(leaf) for leaf in leaves},
        "version": {leaf: found.versions.get(leaf) for leaf in leaves},
        "gen_kwargs": found.config.get("gen_kwargs"),
    }
    answers, unanswered = _answers(path, leaves, label, filtered)
    error = _number(metrics.get(f"{label}_stderr,{filtered}"))
    paired = answers if len(answers) == count else {}
    higher = found.higher_is_better.get(name, {}).get(label, label not in _LOWER)
    return Score(_number(metrics[metric]) or 0.0, error, count, settings, paired, unanswered, higher)


def _answers(path: Path, leaves: Sequence[str], metric: str, filtered: str) -> tuple[dict[tuple[str, str], float], int]:
    """Read each question's metric from the samples beside a results file, and count the replies without an answer."""
    stamp = path.stem.removeprefix("results_")
    answers: dict[tuple[str, str], float] = {}
    unanswered = 0
    for leaf in leaves:
        samples = path.parent / f"samples_{leaf}_{stamp}.jsonl"
        if not samples.is_file():
            return {}, 0
        for record in files.lines(samples):
            row = record.value if isinstance(record.value, dict) else {}
            score = _number(row.get(metric))
            if row.get("filter", filtered) == filtered and score is not None:
                answers[leaf, str(row.get("doc_id"))] = score
                unanswered += row.get("filtered_resps") == [_NO_ANSWER]
    return answers, unanswered


def _unit(scores: Sequence[Score]) -> str:
    """Return the unit of a benchmark's scores before and after; that of their difference, too, which may be small in any unit."""
    if all(one.higher for one in scores):
        return "share" if all(-1 <= one.value <= 1 for one in scores) else "points"
    return "perplexity" if "perplexity" in scores[0].settings["metric"] else "score"


def _averaged(units: Iterable[str]) -> str:
    """Return the unit of the benchmarks that are in the mean; "" if there is none."""
    there = set(units)
    return next((unit for unit in _AVERAGED if unit in there), "")


def _scores(name: str, results: Mapping[str, Score], units: Mapping[str, str]) -> list[Measure]:
    """Measure each benchmark, with the interval of its standard error, and their mean."""
    measures = []
    for benchmark, unit in units.items():
        one = results[benchmark]
        note = "replies without an answer are wrong ones in every score" if one.unanswered else ""
        limits = _limits(one.value, one.error, _95)
        made = Measure(name, one.value, unit, one.count, "benchmark", benchmark, *limits, note=note)
        measures.append(replace(made, failed=one.unanswered, with_failed=one.value))
    return [*measures, *_mean(name, measures)]


def _mean(name: str, measures: Sequence[Measure]) -> list[Measure]:
    unit = _averaged(one.unit for one in measures)
    values = [one.value or 0.0 for one in measures if one.unit == unit]
    return [Measure(name, sum(values) / len(values), unit, len(values))] if values else []


def _difference(benchmark: str, after: Score, before: Score, unit: str, seed: int) -> Measure:
    for key in after.settings:
        if after.settings[key] != before.settings[key]:
            values = f"{shown(before.settings[key])} before and {shown(after.settings[key])} after"
            raise UserError(f"{benchmark}: {key} is {values}; run both alike")
    value, note = after.value - before.value, ""
    limits = NONE
    if after.error is not None and before.error is not None:
        limits = _limits(value, math.hypot(after.error, before.error), _99)
        note = "after - before, 99% interval by the standard errors: log samples of both for a narrower one"
    common = list(after.answers)
    if len(common) > 1 and after.answers.keys() == before.answers.keys():
        ones = torch.ones(len(common), dtype=torch.float64)
        totals = [torch.tensor([of.answers[key] for key in common], dtype=torch.float64) for of in (after, before)]
        paired = compare(Ratio(totals[0], ones), Ratio(totals[1], ones), common, seed)
        if math.isclose(paired.difference, value, abs_tol=1e-6):
            note = f"after - before, question by question, 99% interval: {paired.verdict}"
            limits = paired.low, paired.high
    return Measure("score_difference", value, unit, after.count, "benchmark", benchmark, *limits, note=note)


def _limits(value: float, error: float | None, width: float) -> Limits:
    return NONE if error is None else (value - width * error, value + width * error)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else number(value)
