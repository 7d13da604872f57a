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

RECIPES = Path(__file__).parents[2] / "recipes"


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

    def rise(self) -> tuple[float, float]:
        """The mean difference and its standard error, paired by transition."""
        return mean_and_error([after - before for before, after in zip(self.before, self.after, strict=True)])


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def train_by_trl(algorithm: str, folder: Path, seed: int, *flags: str, greedy: bool = False) -> Trained:
    """By `rwml_<algorithm>_tiny.yaml`, in this process, after run_rwml_sft_tiny.sh where `folder` has no start yet."""
    from wm_plugin.trl import train

    began = _cpu_seconds()
    runs = folder / "runs"
    if not (runs / "rwml_sft_tiny" / "config.json").exists():
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "SEED": str(seed)}
        script = ["bash", str(RECIPES / "trl" / "run_rwml_sft_tiny.sh"), "--disable_tqdm", "true"]
        subprocess.run(script, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
    recipe = ["--config", str(RECIPES / "trl" / f"rwml_{algorithm}_tiny.yaml"), "--seed", str(seed)]
    places = ["--model_name_or_path", str(runs / "rwml_sft_tiny"), "--dataset_name", str(runs / "rwml_tiny" / "data")]
    trainer, _ = train.build([*recipe, *places, "--output_dir", str(runs / algorithm), *flags])
    reward, scores = trainer.reward_funcs[0], []

    def recorded(prompts, completions, **columns):
        given = reward(prompts, completions, **columns)
        if not trainer.model.training:
            scores.extend(given)
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
        return _cpu_seconds() - spent

    apart = evaluate_greedily()
    trainer.train()
    half = len(scores) // 2
    before, after = scores[:half], scores[half:]
    scores.clear()
    cpu_seconds = _cpu_seconds() - began - apart
    evaluate_greedily()
    return Trained(before, after, trainer.state.global_step, cpu_seconds, trainer.state.log_history, without_sampling)


def train_by_verl(algorithm: str, folder: Path, seed: int, *overrides: str, timeout: float = 3000) -> Trained:
    """By `run_rwml_<algorithm>_tiny.sh`, which makes the start where `folder` has none yet."""
    from support import run_on_verl

    dumped, meter = folder / f"validation_{algorithm}", CpuMeter()
    seeds = (f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}")
    run = run_on_verl.run_recipe(
        f"rwml_{algorithm}_tiny",
        folder,
        f"trainer.validation_data_dir={dumped}",
        *seeds,
        *overrides,
        timeout=timeout,
        environment={"SEED": str(seed), CpuMeter.MARK: meter.mark},
        until=meter.look,
    )
    if run.code:
        raise RuntimeError(run.output[-5000:])
    before, after = (_dump(path) for path in sorted(dumped.glob("*.jsonl"), key=lambda path: int(path.stem)))
    steps = sum("actor/grad_norm" in step for step in run.steps)
    return Trained(before, after, steps, meter.seconds(), run.steps)


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


def _dump(path: Path) -> list[float]:
    """The scores of a validation that verl wrote down, in an order that does not depend on the model."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["score"] for row in sorted(rows, key=lambda row: (row["input"], row["gts"]))]


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
