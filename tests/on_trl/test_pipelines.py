"""The pipelines that come with the package, on TRL: what they say to `wm train` is read, and a tiny one runs to its report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from trl.scripts import sft

from support.pipelines import variants
from support.scripts import RECIPES, trl_words
from wm_plugin.hosting import config_file
from wm_plugin.lab.evaluation.measures import read_result
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.shipped import shipped
from wm_plugin.trl import train

QUICK = ("seeds=0", "steps=2", "sft_steps=2", "wm_steps=2", "k=1", "boards=16", "episodes=16", "start=--random")
ON_CPU = ["--use_cpu", "true", "--bf16", "false"]
RL = [*ON_CPU, "--use_vllm", "false", "--num_generations_eval", "1"]
VARIANTS = [(name, sets) for name in sorted(shipped()) for sets in variants(name)]


@pytest.mark.parametrize(("name", "sets"), VARIANTS)
def test_what_a_pipeline_says_to_the_trainer_is_read(name, sets):
    """By the launcher, as it comes to TRL."""
    found = []
    for step in expand(read(shipped()[name], sets.split())):
        if step.loops.get("seed", "0") != "0":
            continue
        for command in step.commands:
            place = next((place for place, word in enumerate(command) if word.endswith("/run.sh")), None)
            if place is None:
                if "tiny_worlds" in sets and "measure" in command:  # in the world that RL had
                    assert command[command.index("--environment") + 1] == sets.partition(",")[2]
                continue
            recipe, *flags = command[place + 1 :]
            assert flags[flags.index("--out") + 1] in step.makes
            words = trl_words(recipe, *flags, **step.env)
            if "datasets" in yaml.safe_load(Path(words[1]).read_text()):
                sft.make_parser().parse_args_and_config([*words, *ON_CPU])
                continue
            script, config, _, _ = train.parse([*words, *RL])
            found.append(step.family)
            if "tiny_worlds" in sets:
                assert script.environment == sets.partition(",")[2]
            if step.family == "train" and "tau2" in sets:  # with the customer of the setting
                own = config_file.read(str(RECIPES / "trl/policy_tau2.yaml"))
                assert script.train_rows_kwargs == own["train_rows_kwargs"]
            if step.family == "train" and name == "early_experience" and "tau2" not in sets:
                assert (f"world={script.environment}", config.max_completion_length) == (sets, 4096)
                assert (config.beta, config.max_tool_calling_iterations, config.max_steps) == (0.001, 20, -1)
                assert (config.generation_kwargs, config.num_train_epochs) == ({"max_tokens": 200}, 10)
                assert (config.gradient_accumulation_steps, config.steps_per_generation) == (8, 16)
            if script.simulation is not None:
                train.run_config(script).classes()
    sft_alone = ("baselines", "word2world", "consistency", "synthetic", "verify_shop")
    assert found or name.startswith(sft_alone)


def run(folder, *sets, name="rwml_rl_tiny"):
    words = [word for one in sets for word in ("--set", one)]
    command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", name, "--out", "out", "--json", *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def compared(folder):
    reports = [json.loads(path.read_text()) for path in sorted((folder / "out").glob("**/report.json"))]
    (found,) = [report["compared"] for report in reports if "compared" in report]
    return found


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_tiny_pipeline_measures_the_same_with_a_kill_and_without(tmp_path):
    found = []
    for killed in (False, True):
        folder = tmp_path / str(killed)
        folder.mkdir()
        if killed:
            process = run(folder, *QUICK)
            record = folder / "out/.pipeline/steps/train:wm_sft_rl:0.json"
            until = time.monotonic() + 1500
            while not record.exists():
                assert process.poll() is None, process.communicate()[1][-3000:]
                assert time.monotonic() < until
                time.sleep(0.2)
            time.sleep(5)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process = run(folder, *QUICK)
        out, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
        states = {step["name"]: step["state"] for step in json.loads(out.splitlines()[-1])["steps"]}
        assert set(states.values()) == ({"done", "ran"} if killed else {"ran"})
        found.append(compared(folder))
        assert list((folder / "out").glob("**/report.html"))
    assert found[0] == found[1]
    assert found[0]["against"] == "base"
    arms = ["base", "wm_sft", "rwml", "rl", "wm_sft_rl", "rwml_rl"]
    assert [row["arm"] for row in found[0]["rows"] if row["measure"] == "success"] == arms


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_the_arm_mixed_runs_to_its_table(tmp_path):
    """`tests/benchmarks/test_reproduce.py` runs the other arms, and the other pipelines, as trials."""
    # a run stops where most episodes lose their world: this world model has learnt to end one
    less = ("seeds=0", "steps=1", "wm_steps=200", "boards=16", "episodes=400", "arms=real,mixed")
    process = run(tmp_path, *less, name="sim_rl_tiny")
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    assert {row["arm"] for row in compared(tmp_path)["rows"]} == {"start", "real", "mixed"}


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_consistency_is_measured_before_and_after_training(tmp_path):
    process = run(tmp_path, "tasks=6", "flags=--steps,2,--batch,1", name="consistency_tiny")
    _, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    for when in ("before", "after"):  # after two steps no answer may be whole, and each episode counts as failed
        real = read_result(tmp_path / "out" / when).measure("real")
        assert real.count + real.failed > 0
