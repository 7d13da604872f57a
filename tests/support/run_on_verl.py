"""Runs a recipe of verl's through its own script, on CPUs, and brings back what it logged."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import behaviour_cloning

TESTS = Path(__file__).parents[1]
RECIPES = TESTS.parent / "recipes" / "verl"
MARK = "WM_TEST_RUN"  # in the environment of every process of a run, Ray's included


@dataclass(frozen=True)
class Run:
    code: int  # of the script; -SIGKILL where it was killed
    output: str
    steps: list[dict[str, float]]  # the metrics of each step, in their order

    def series(self, metric: str) -> list[float]:
        return [step[metric] for step in self.steps]


def run_recipe(
    name: str,
    folder: Path,
    *overrides: str,
    timeout: float = 400,
    environment: dict[str, str] | None = None,
    until: Callable[[], bool] = lambda: False,
) -> Run:
    """Run `recipes/verl/run.sh NAME` in `folder`, where it finds or writes its `runs/`. Leaves no process behind.

    Args:
        name: a recipe, e.g. `echo_grpo_tiny`.
        folder: the working directory; one that has run a tiny recipe has its policy and data already.
        overrides: Hydra's, such as `wm.coeff=0`.
        timeout: seconds until everything is killed.
        environment: variables beside this process's own.
        until: asked now and then; everything is killed (by SIGKILL) as soon as it says yes.
    """
    metrics = folder / f"{uuid.uuid4().hex}.jsonl"
    mark = uuid.uuid4().hex
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",  # idle processes that take the cores from those that start
        MARK: mark,
        **(environment or {}),
    }
    # the modules of tests, beside those of one test
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [variables.get("PYTHONPATH"), str(TESTS)]))
    command = [str(RECIPES / "run.sh"), name, "trainer.logger=[console,file]", *overrides]
    log = folder / f"{metrics.stem}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deadline = time.monotonic() + timeout
            while (code := process.poll()) is None:
                if until() or time.monotonic() > deadline:
                    code = -signal.SIGKILL
                    break
                time.sleep(0.1)
        finally:
            _kill(mark)
            process.wait()
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return Run(code, log.read_text(), [json.loads(line)["data"] for line in lines])


def walking_policy(path: Path) -> None:
    """Write a tiny policy that walks, and so has rewards that differ, but has learnt nothing of its world."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    behaviour_cloning(model, tokenizer, 0, steps=40, demonstrations=300, environment_weight=0.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def check_rollouts_are_on_policy(run: Run) -> None:
    """The rollout starts from weights of its own, so that its log-probabilities are the trainer's only after a transfer."""
    assert run.series("training/rollout_probs_diff_valid") == [1] * len(run.steps)
    assert max(run.series("training/rollout_probs_diff_max")) < 1e-5


def _kill(mark: str) -> None:
    """Kill what is left of a run: Ray's processes lead sessions of their own, but all of them have inherited the mark."""
    deadline = time.monotonic() + 10
    while (left := _marked(mark)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
