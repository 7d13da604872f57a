"""The pipelines of this package: each expands for both hosts, and what they call is there, flags included."""

import json
import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from support.pipelines import variants
from wm_plugin.cli.main import main, parse
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.engine import check_inputs, chosen
from wm_plugin.lab.pipelines.shipped import shipped

RECIPES = Path(__file__).parents[3] / "recipes"
METHODS = ("baselines", "early_experience", "echo_alpha", "lwm_warm_up", "rwml_rl", "sim_rl", "word2world")
CASES = [(name, host, sets) for name in sorted(shipped()) for host in ("trl", "verl") for sets in variants(name)]


def steps_of(name, host, sets=""):
    return expand(read(shipped()[name], [f"host={host}", *sets.split()]))


def test_each_method_has_a_full_and_a_tiny_one():
    assert sorted(shipped()) == sorted(f"{name}{size}" for name in METHODS for size in ("", "_tiny"))


def calls(step):
    """The words after `wm` of a step's commands, those included that run beside a server."""
    for command in step.commands:
        words = list(command)
        if "wm" in words:
            yield words[words.index("wm") + 1 :]
        elif "wm_plugin.cli.main" in words:
            yield words[words.index("wm_plugin.cli.main") + 1 :]


@pytest.mark.parametrize(("name", "host", "sets"), CASES)
def test_each_call_of_wm_has_flags_that_there_are(name, host, sets):
    seen = 0
    for step in steps_of(name, host, sets):
        for words in calls(step):
            seen += 1
            if words[0] != "train":  # which on_trl/test_pipelines.py reads
                parse(words)
    assert seen >= (1 if name.startswith("echo_alpha") else 3)  # of which verl has the report alone


@pytest.mark.parametrize(("name", "host", "sets"), CASES)
def test_files_of_recipes_are_there_and_no_name_is_left(name, host, sets):
    steps = steps_of(name, host, sets)
    check_inputs(steps)
    for step in steps:
        for word in [word for command in step.commands for word in command]:
            assert not re.search(r"(?<!\$)\{@?[a-z_]+\}", word), word
            if word.startswith(str(RECIPES)) and word.endswith((".sh", ".yaml")):
                assert Path(word).is_file(), word


@pytest.mark.parametrize(("name", "host", "sets"), CASES)
def test_a_step_needs_the_files_that_its_commands_read(name, host, sets):
    for step in steps_of(name, host, sets):
        for word in [word for command in step.commands for word in command]:
            if word.startswith(str(RECIPES)) and word.endswith((".yaml", ".json")):
                assert os.path.normpath(word) in step.needs, (step.name, word)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_setting_and_value_is_used(name):
    text = shipped()[name].read_text()
    for names in (read(shipped()[name]).settings, read(shipped()[name]).values):
        assert [one for one in names if f"{{{one}}}" not in text and f"by: {one}" not in text] == []


@pytest.mark.parametrize(("name", "host", "sets"), CASES)
def test_each_ends_with_a_report_of_all_arms_and_seeds(name, host, sets):
    steps = {step.name: step for step in steps_of(name, host, sets)}
    arms = {step.loops["arm"] for step in steps.values() if "arm" in step.loops}
    (report,) = steps["report"].commands
    assert {one.partition("=")[0] for one in report if "=*/" in one} == arms
    assert "--against" not in report or report[report.index("--against") + 1] in arms
    assert [Path(path).name for path in steps["report"].makes] == ["report.html", "report.json"]
    evaluated = [step for step in steps.values() if step.family == "evaluate"]
    assert len(evaluated) == len({step.loops["seed"] for step in evaluated}) * len(arms)
    assert {path for step in evaluated for path in step.makes} <= set(report)
    assert [step.name for step in steps.values() if step.show] == ["report"]


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("name", [f"{name}_tiny" for name in METHODS])
def test_the_report_reads_what_a_host_leaves(name, host, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = steps_of(name, host)
    for step in steps:
        for path in map(Path, step.makes if step.family in ("train", "evaluate") else ()):
            arm_and_seed = path.stem
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".jsonl":  # of verl, beside its folder
                path.write_text(json.dumps({"step": 1, "data": {"critic/rewards/mean": 0.5}}) + "\n")
                continue
            path.mkdir()
            if step.family == "evaluate":
                found = [Measure("success", 0.5, "share", 8, low=0.2, high=0.8)]
                write_result(Evaluation("held-out boards", arm_and_seed, "boards", {}, found), path)
            elif host == "verl":
                (path / "latest_checkpointed_iteration.txt").write_text("1")
            else:
                log = [{"step": 1, "reward": 0.5}]
                (path / "checkpoint-1").mkdir()
                (path / "checkpoint-1/trainer_state.json").write_text(
                    json.dumps({"log_history": log, "global_step": 1})
                )
    Path(steps[-1].makes[0]).parent.mkdir(exist_ok=True)  # as the engine does
    (report,) = {step.name: step for step in steps}["report"].commands
    assert main(list(report[1:])) == 0, capsys.readouterr().err
    written = json.loads(Path(steps[-1].makes[1]).read_text())
    arms = {step.loops["arm"] for step in steps if "arm" in step.loops}
    assert {row["arm"] for row in written["compared"]["rows"]} == arms
    assert {row["runs"] for row in written["compared"]["rows"]} == {3}


@pytest.mark.parametrize("name", METHODS)
def test_full_ones_have_the_papers_constants(name):
    text = " ".join(word for step in steps_of(name, "trl") for command in step.commands for word in command)
    if name in ("rwml_rl", "lwm_warm_up"):
        assert "--count 2048 --per-task 3 --max-turns 30" in text
    if name == "rwml_rl":
        assert "--k 10 --tau-easy 0 --keep 0.1 --threshold 0.1" in text
        assert '"threshold": 0.2, "step": 0.2' in text
        tau2 = " ".join(word for step in steps_of(name, "trl", "world=tau2") for c in step.commands for word in c)
        assert "--keep 0.1 --threshold 0.15" in tau2
        assert '"threshold": 0.4' in tau2
        assert "--mask-values --profile" in tau2
        # WM-SFT learns the same transitions, and all train the model that is asked for
        mine = {step.name: step for step in steps_of(name, "trl", "model=some/model")}
        assert mine["wm_sft_rows"].commands[0][3] == mine["samples"].commands[0][3] == mine["easy"].makes[0]
        trained = [
            step for step in mine.values() if step.family in ("wm_sft", "rwml") or step.name.startswith("train:rl:")
        ]
        assert len(trained) == 9
        for step in trained:
            words = step.commands[-1]
            assert words[words.index("--model_name_or_path") + 1] == "some/model"
        ablations = {step.name: step for step in steps_of(name, "trl", "table=4")}
        words = ablations["easy"].commands[0]
        assert ablations["unsampled"].commands[0][3] == words[words.index("easy") + 1]  # what was subsampled
        assert '"binary": true' in " ".join(ablations["rwml:judge_binary:0"].commands[0])
        official = {step.name: step for step in steps_of(name, "trl", "world=tau2 official=yes")}
        assert official["evaluate:rl:0"].commands[0][-2:] == ("gpt-4.1", "100")
    if name == "early_experience":
        assert text.count("--count 1000") == 2
        assert "--successful" not in text  # trajectories as they come, two draws
        for flags in (
            "--num_train_epochs 10 --max_steps -1 --max_tool_calling_iterations 20",
            '--generation_kwargs {"max_tokens": 200}',
            "--gradient_accumulation_steps 8 --steps_per_generation 16 --beta 0.001",
        ):
            assert flags in text
        verl = {step.name: step for step in steps_of(name, "verl")}
        words = verl["train:early_rl:0"].commands[0]
        assert {"trainer.total_epochs=10", "wm.max_turns=21", "wm.max_turn_tokens=200"} <= set(words)
        assert {"actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.kl_loss_coef=0.001"} <= set(
            words
        )
        assert "trainer.total_training_steps=1280" in words  # 10 epochs of 2,048 tasks, 16 a step
        assert "/global_step_1280/" in verl["evaluate:early_rl:0"].commands[0][2]
        assert verl["rollouts"].env == {"TENSOR_PARALLEL": "4"}  # 72B parameters in 16 bits are more than a GPU has
    if name == "lwm_warm_up":
        assert "--turns one" in text
        assert "rwml_alfworld_gspo.yaml" in text
        assert {"--echo_coeff 0.05", "--echo_coeff 0.0"} <= set(re.findall(r"--echo_coeff \S+", text))
    if name == "echo_alpha":
        alphas = re.findall(r"--max_steps 100 --eval_strategy no --echo_coeff (\S+)", text)
        assert sorted(alphas[::3]) == ["0.0", "0.01", "0.05", "0.1", "0.5", "1.0"]
    if name == "baselines":
        assert text.count("--alternatives 3") == 2
        tau2 = {step.name: step for step in steps_of(name, "trl", "world=tau2")}
        assert {step.loops.get("arm") for step in tau2.values()} == {None, "imitation", "rft"}
        assert tau2["imitation"].commands[0][5] == "rft"  # of the expert's rollouts those that succeeded
    if name == "word2world":
        agents = {step.name: step for step in steps_of(name, "trl", "study=agents")}
        assert agents["mixed:single"].commands[0][-4:-2] == ("--count", "4000")
        assert agents["mixed:mixed"].commands[0][-4:-2] == ("--count", "1000")
        assert len(agents["mixed:mixed"].commands[0][3:-4]) == 4
        (words,) = agents["evaluate:single:0"].commands
        assert words.count("--agent-model") == 8  # four that it learns of, four others
        mixture = {step.name: step for step in steps_of(name, "trl", "study=mixture")}
        assert [len(mixture[f"mixed:mix{n}"].commands[0][3:-4]) for n in (3, 4, 5)] == [3, 4, 5]


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_another_arm_or_file_runs_nothing_that_does_not_depend_on_it(host):
    for name in ("sim_rl", "sim_rl_tiny"):
        steps = {step.name: step for step in steps_of(name, host)}
        before = {
            arm: {family.partition(":")[0] for family in steps[f"train:{arm}:0"].after} for arm in ("real", "sim")
        }
        assert before["sim"] - before["real"] == {"world_model" if name == "sim_rl" else "world"}
        assert str(RECIPES / "pipelines" / "sim_control_tiny.yaml") in steps["episodes"].needs
        assert not any("mixed" in need for need in steps["train:sim:0"].needs)
    for name in ("rwml_rl", "lwm_warm_up", "early_experience"):
        steps = {step.name: step for step in steps_of(name, host, "world=tau2")}
        # with another model or customer these go, too: the script leaves a file that is there
        assert f"runs/{name}/{host}_tau2/rollouts" in steps["rollouts"].makes


def test_a_world_that_a_method_does_not_have_is_one_line(capsys):
    assert main(["lab", "pipeline", "sim_rl", "--list", "--set", "world=tau2"]) == 2
    assert "a table has no case 'tau2' of world; there is 'alfworld'" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("name", ["rwml_rl", "lwm_warm_up", "early_experience"])
def test_the_customer_of_a_setting_plays_everywhere(name, host):
    sets = [f"host={host}", "world=tau2", "seeds=0", "customer=http://mine/v1"]
    steps = expand(read(shipped()[name], sets))
    text = " ".join(word for step in steps for command in step.commands for word in command)
    assert "localhost:8002" not in text
    families = {step.family for step in steps if any("http://mine/v1" in word for c in step.commands for word in c)}
    assert families == {"rollouts", "evaluate", "train" if host == "trl" else "policy_rows"}


def bash(folder, script, *words, **variables):
    """A script's exit code, and what it said; programs in the folder's bin are found first."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(RECIPES / "pipelines" / script), *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, **variables}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_a_server_that_is_there_already_is_not_taken_for_the_models(tmp_path):
    with socket.socket() as mine:
        with suppress(OSError):  # in use by another, which is as good
            mine.bind(("127.0.0.1", 8000))
            mine.listen()
        code, out, error = bash(tmp_path, "beside_vllm.sh", "some/model", "echo", "asked")
    assert (code, out) == (1, "")
    assert error == "beside_vllm.sh: a server is at port 8000 already; end it, or run one step at a time\n"


def test_a_large_model_is_spread_over_gpus(tmp_path):
    if socket.socket().connect_ex(("127.0.0.1", 8000)) == 0:
        pytest.skip("port 8000 is in use")
    (tmp_path / "bin").mkdir()
    for name, text in (("vllm", 'echo "$@" > calls\nexec sleep 100'), ("curl", "sleep 0.2; [ -s calls ]")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert bash(tmp_path, "beside_vllm.sh", "some/model", "echo", "asked")[:2] == (0, "asked\n")
    assert "--tensor-parallel-size 1 --data-parallel-size 8" in (tmp_path / "calls").read_text()
    bash(tmp_path, "beside_vllm.sh", "some/model", "true", TENSOR_PARALLEL="4")
    assert "--tensor-parallel-size 4 --data-parallel-size 2" in (tmp_path / "calls").read_text()


def test_a_log_that_begins_anew_with_each_start_is_whole_in_the_end(tmp_path):
    """As verl's: a start empties the file; a kill may cut a line."""
    log = tmp_path / "logs.jsonl"

    def line(step):
        return f'{{"step":{step},"data":{{"reward":{step}}}}}\n'

    def start(text, code):
        (tmp_path / "text").write_text(text)
        return bash(
            tmp_path,
            "whole_log.sh",
            "trained",
            "bash",
            "-c",
            f"cat text > logs.jsonl; exit {code}",
            VERL_FILE_LOGGER_PATH=str(log),
        )[0]

    assert start(line(1) + line(2) + '{"step":3,"da', 9) == 9
    assert start("", 9) == 9  # killed before its first step
    assert start(line(2) + line(3), 9) == 9
    assert start(line(4), 0) == 0
    assert log.read_text() == line(1) + line(2) + line(2) + line(3) + line(4)
    assert not list((tmp_path / "trained").iterdir())
    log.unlink()
    assert start(line(7), 0) == 0
    assert log.read_text() == line(7)


@pytest.mark.parametrize("name", ["rwml_rl", "lwm_warm_up", "early_experience", "sim_rl"])
def test_policy_rl_on_verl_keeps_its_log_beside_what_it_trains(name):
    """So that a step that begins anew leaves none of an earlier one's."""
    for step in steps_of(name, "verl"):
        if step.family == "train":
            (words,) = step.commands
            assert words[1].endswith("/whole_log.sh")
            assert words[2] in step.makes
            assert step.env["VERL_FILE_LOGGER_PATH"] in step.makes
        seed = step.loops.get("seed")
        for words in step.commands:
            if "verl.trainer.main_ppo" in words:  # of the order of tasks, and of what is drawn
                assert {f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"} <= set(words)


def test_they_are_listed_and_a_misspelt_one_is_found(capsys):
    assert main(["lab", "pipeline", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["pipelines"]
    assert [one["name"] for one in found] == sorted(shipped())
    assert all(one["about"] for one in found)
    assert main(["lab", "pipeline", "rwml_rl_tinny", "--list"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("'rwml_rl_tinny' (the name of a file of yours ends in .yaml); did you mean 'rwml_rl_tiny'?\n")


def test_a_list_is_for_people_and_programs(capsys):
    assert main(["lab", "pipeline", "sim_rl_tiny", "--list", "--set", "seeds=4"]) == 0
    shown = capsys.readouterr().out
    assert "--set seeds=4\n" in shown
    assert (
        "\ntrain:mixed:4\n    python -m wm_plugin.lab.tiny.serve --model runs/sim_rl_tiny/trl/world --port 8434 python -m"
        in shown
    )
    assert main(["lab", "pipeline", "sim_rl_tiny", "--list", "--json", "--out", "x"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[-1]["name"] == "report"
    assert steps[-1]["makes"] == ["x/report.html", "x/report.json"]


def test_jobs_and_launchers_are_checked(capsys):
    assert main(["lab", "pipeline", "sim_rl_tiny", "--jobs", "0"]) == 2
    assert "--jobs is 0; write a number >= 1" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such step"):
        chosen(steps_of("sim_rl_tiny", "trl"), ["nothing_like_it"])
