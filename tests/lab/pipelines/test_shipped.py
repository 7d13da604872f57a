"""The pipelines of this package: each expands for both hosts, and what they call is there, flags included."""

import json
import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from support.pipelines import hosts, variants
from support.scripts import RECIPES, listed
from wm_plugin.cli.eval.consistency import Tasks
from wm_plugin.cli.main import main, parse
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result
from wm_plugin.lab.pipelines import expand, read
from wm_plugin.lab.pipelines.engine import check_inputs, chosen
from wm_plugin.lab.pipelines.shipped import shipped
from wm_plugin.lab.tiny.rollouts import rollouts
from wm_plugin.worlds.worlds import load

METHODS = ("baselines", "early_experience", "echo_alpha", "lwm_warm_up", "rwml_rl", "sim_rl", "word2world")
OTHERS = ("consistency_tiny", "rwml_tiny", "sql_135m", "synthetic_tiny", "verify_shop_tiny", "warm_up_designs_tiny")
CASES = [(name, host, sets) for name in sorted(shipped()) for host in hosts(name) for sets in variants(name)]


def steps_of(name, host, sets=""):
    given = [f"host={host}"] if len(hosts(name)) > 1 else []
    return expand(read(shipped()[name], [*given, *sets.split()]))


def text_of(steps):
    return " ".join(word for step in steps for command in step.commands for word in command)


def test_each_method_has_a_full_and_a_tiny_one():
    assert sorted(shipped()) == sorted([*(f"{name}{size}" for name in METHODS for size in ("", "_tiny")), *OTHERS])


def calls(step):
    """The words after `wm` of a step's commands, those included that run beside a server."""
    for command in step.commands:
        words = list(command)
        if "wm" in words:
            yield words[words.index("wm") + 1 :]


@pytest.mark.parametrize(("name", "host", "sets"), CASES)
def test_each_call_has_flags_that_there_are_and_each_step_needs_what_it_reads(name, host, sets):
    recipes, seen = listed(host), 0
    for step in steps_of(name, host, sets):
        for words in calls(step):
            seen += 1
            parse(words)
        for command in step.commands:
            for place, word in enumerate(command):
                assert not re.search(r"(?<!\$)\{@?[a-z_]+\}", word), word
                if word.startswith(str(RECIPES)) and word.endswith((".sh", ".yaml")):
                    assert Path(word).is_file(), word
                    if word.endswith(".yaml"):
                        assert os.path.normpath(word) in step.needs, (step.name, word)
                if word.endswith("/run.sh"):  # whose recipe, if it changes, is trained again
                    config = recipes[command[place + 1]].config
                    assert {str(config), str(config.parent)} & {*step.needs} or config.stem in (
                        "policy_tau2",
                        "rwml_tau2_grpo",
                    )
    assert seen >= 1


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_setting_and_value_is_used(name):
    pipeline, text = read(shipped()[name]), shipped()[name].read_text()
    of_cases = {one for table in pipeline.cases.values() for names in table.values() for one in names}
    for one in {*pipeline.settings, *pipeline.values, *of_cases}:
        assert f"{{{one}}}" in text or one in pipeline.cases or f"when: {{{one}:" in text, one


@pytest.mark.parametrize(("name", "host", "sets"), [case for case in CASES if case[0] not in OTHERS])
def test_each_ends_with_a_report_of_all_arms_and_seeds(name, host, sets):
    steps = {step.name: step for step in steps_of(name, host, sets)}
    arms = {step.loops["arm"] for step in steps.values() if "arm" in step.loops}
    (report,) = steps["report"].commands
    named = {one.partition("=")[0] for one in report if "=*/" in one}
    evaluated = [step for step in steps.values() if step.family in EVALUATE]
    beside = [step for step in steps.values() if step.family in BESIDE]
    names = {Path(path).name.partition("_s")[0] for step in beside for path in step.makes}
    assert not named or named == arms | names  # else they are the folders' names without the seed
    assert "--against" not in report or report[report.index("--against") + 1] in arms
    assert [Path(path).name for path in steps["report"].makes] == ["report.html", "report.json"]
    seeds = {(step.family, step.loops["seed"]) for step in evaluated}
    assert len(evaluated) == len(seeds) * len(arms)
    assert {path for step in (*beside, *evaluated) for path in step.makes} <= set(report)
    assert [step.name for step in steps.values() if step.show] == ["report"]


EVALUATE = ("evaluate", "evaluate_each", "one_step", "one_step_each", "consistency")
# of what RL begins from, and on boards that the world model learnt: these are no arms
BESIDE = ("evaluate_before", "consistency_before", "consistency_seen")


@pytest.mark.parametrize("host", ["trl", "verl"])
@pytest.mark.parametrize("name", [f"{name}_tiny" for name in METHODS])
def test_the_report_reads_what_a_host_leaves(name, host, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = steps_of(name, host)
    beside = set()
    for step in steps:
        for path in map(Path, step.makes if step.family in ("train", *BESIDE, *EVALUATE) else ()):
            path.mkdir(parents=True)
            if step.family in BESIDE:
                beside.add(path.name.partition("_s")[0])
            if step.family in (*BESIDE, *EVALUATE):
                found = [Measure("success", 0.5, "share", 8, low=0.2, high=0.8)]
                write_result(Evaluation(path.parent.name, path.stem, "boards", {}, found), path)
            elif host == "verl":
                (path / "latest_checkpointed_iteration.txt").write_text("1")
                (path / "log.jsonl").write_text(json.dumps({"step": 1, "data": {"critic/rewards/mean": 0.5}}) + "\n")
            else:
                log = [{"step": 1, "reward": 0.5}]
                (path / "checkpoint-1").mkdir()
                state = {"log_history": log, "global_step": 1}
                (path / "checkpoint-1/trainer_state.json").write_text(json.dumps(state))
                (path / "model").symlink_to(".")
    Path(steps[-1].makes[0]).parent.mkdir(exist_ok=True)  # as the engine does
    (report,) = {step.name: step for step in steps}["report"].commands
    assert main(list(report[1:])) == 0, capsys.readouterr().err
    written = json.loads(Path(steps[-1].makes[1]).read_text())
    arms = {step.loops["arm"] for step in steps if "arm" in step.loops}
    assert {row["arm"] for row in written["compared"]["rows"]} == arms | beside
    assert {row["runs"] for row in written["compared"]["rows"] if row["arm"] not in beside} == {3}


@pytest.mark.host  # the schemas of tools
def test_the_seen_boards_are_those_that_the_world_model_learnt():
    steps = {step.name: step for step in steps_of("sim_rl_tiny", "trl", "episodes=12 boards=6")}
    (learnt,) = [command for command in steps["episodes"].commands if "rollouts" in command]
    (seen,) = steps["consistency_seen:0"].commands
    assert (learnt[learnt.index("--seed") + 1], "--held-out" in learnt) == ("0", False)
    assert (seen[seen.index("--split") + 1], "--seed" in seen) == ("seen", False)  # whose default is 0
    tasks = Tasks(split=("seen",), limit=6).rows(load("grid"))["seen"]
    begun = {episode.context.initial_state for episode in rollouts(12, 0)}  # a board, and ">"
    assert len(tasks) == 6
    assert {row["board"] + ">" for row in tasks} <= begun


@pytest.mark.parametrize("name", METHODS)
def test_full_ones_have_the_papers_constants(name):
    steps = {step.name: step for step in steps_of(name, "trl")}
    text = text_of(steps.values())
    if name == "rwml_rl":
        assert "--k 10 --tau-easy 0 --keep 0.1 --threshold 0.1" in text
        assert '"threshold": 0.2, "step": 0.2' in text
        tau2 = text_of(steps_of(name, "trl", "world=tau2"))
        assert "--keep 0.1 --threshold 0.15" in tau2
        assert '"threshold": 0.4' in tau2
        assert "--mask-values --profile" in tau2
        # WM-SFT learns the same transitions, and all train the model that is asked for
        mine = {step.name: step for step in steps_of(name, "trl", "model=some/model")}
        assert mine["wm_sft:wm_sft:0"].commands[0][3] == mine["samples"].commands[0][3] == mine["easy"].makes[0]
        for step in mine.values():
            if step.family in ("wm_sft", "rwml") or step.name.startswith("train:rl:"):
                assert step.commands[-1][step.commands[-1].index("--model") + 1] == "some/model"
        ablations = {step.name: step for step in steps_of(name, "trl", "table=4")}
        words = ablations["easy"].commands[0]
        assert ablations["unsampled"].commands[0][3] == words[words.index("easy") + 1]  # what was subsampled
        assert '"binary": true' in " ".join(ablations["rwml:judge_binary:0"].commands[0])
        official = {step.name: step for step in steps_of(name, "trl", "world=tau2 official=yes")}
        assert official["evaluate:rl:0"].commands[0][-2:] == ("--max-turns", "100")
        assert official["evaluate:rl:0"].env["CUSTOMER_MODEL"] == "gpt-4.1"
        alone = chosen(steps_of(name, "trl", "seeds=0 algorithm=gspo rollouts=/dev/null"), ["rwml:rwml:0"])
        assert [step.family for step in alone[:2]] == [
            "transitions",
            "filter_model",
        ]  # RWML by itself, on rollouts of a user's
        assert "rwml_alfworld_gspo" in alone[-1].commands[0]
    if name == "early_experience":
        assert text.count("--count 1000") == 2
        assert "--successful" not in text  # trajectories as they come, two draws
        for flags in (
            "--num_train_epochs 10 --max_steps -1 --max_tool_calling_iterations 20",
            '--generation_kwargs {"max_tokens": 200}',
            "--gradient_accumulation_steps 8 --steps_per_generation 16 --beta 0.001",
            "--per-task 2 --max-turns 50",
        ):
            assert flags in text
        verl = {step.name: step for step in steps_of(name, "verl")}
        words = {*verl["train:early_rl:0"].commands[0]}
        assert {"trainer.total_epochs=10", "wm.max_turns=21", "wm.max_turn_tokens=200"} <= words
        assert {"actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.kl_loss_coef=0.001"} <= words
        assert "trainer.total_training_steps=1280" in words  # 10 epochs of 2,048 tasks, 16 a step
        assert verl["rollouts"].env["TENSOR_PARALLEL"] == "4"  # 72B parameters in 16 bits are more than a GPU has
    if name == "lwm_warm_up":
        assert "--turns one" in text
        assert "rwml_alfworld_gspo" in text
        assert {"--coeff 0.05", "--coeff 0.0"} <= set(re.findall(r"--coeff \S+", text))
    if name == "echo_alpha":
        alphas = re.findall(r"--steps 100 --coeff (\S+) --eval_strategy no", text)
        assert sorted(alphas[::3]) == ["0.0", "0.01", "0.05", "0.1", "0.5", "1.0"]
    if name == "baselines":
        assert text.count("--alternatives 3") == 2
        tau2 = {step.name: step for step in steps_of(name, "trl", "world=tau2")}
        assert {step.loops.get("arm") for step in tau2.values()} == {None, "imitation", "rft"}
        assert tau2["imitation"].commands[0][5] == "rft"  # of the expert's rollouts those that succeeded
    if name == "word2world":
        agents = {step.name: step for step in steps_of(name, "trl", "study=agents")}
        single, mixed = (agents[f"rows:{arm}"].commands[0] for arm in ("single", "mixed"))
        assert (single[-4:-2], mixed[-4:-2]) == (("--count", "4000"), ("--count", "1000"))
        assert len(mixed[3:-4]) == 4
        (words,) = agents["consistency:single:0"].commands
        assert words.count("--agent-model") == 8  # four that it learns of, four others
        mixture = {
            step.name: step for step in steps_of(name, "trl", "study=mixture pairs=/dev/null pairs_test=/dev/null")
        }
        assert [len(mixture[f"rows:mix{n}"].commands[0][3:-4]) for n in (3, 4, 5)] == [3, 4, 5]


def test_the_small_studies_treat_their_arms_alike():
    """But for the setting that they compare."""
    for host in ("trl", "verl"):
        steps = {step.name: step for step in steps_of("sql_135m", host)}
        grpo, echo = (text_of([steps[f"train:{arm}"]]).replace(arm, "ARM") for arm in ("grpo", "echo"))
        assert grpo.replace("--coeff 0", "--coeff 1.0").replace("echo_sql", "ARM_sql") == echo
        assert "--held-out" in text_of([steps["episodes"], steps["played:echo"]])
        assert "--held-out" not in text_of([steps["cloned"]])
    for which in variants("consistency_tiny"):
        steps = {step.name: step for step in steps_of("consistency_tiny", "trl", which)}
        before, after = (text_of([steps[f"measure:{when}"]]) for when in ("before", "after"))
        assert before.replace("/start", "/trained").replace("/before", "/after") == after
        # what is trained on shows the hidden state where the evaluation does
        assert ("--no-world-context" in text_of([steps["train"]])) is ("--no-world-context" in before)
        assert ("--no-world-context" in before) is (which == "which=scienceworld_135m")
        assert "--agent expert --agent random" in before
    for host in ("trl", "verl"):
        steps = {step.name: step for step in steps_of("synthetic_tiny", host)}
        trained = {
            text_of([steps[f"train:{arm}:0"]]).replace(f"/{arm}_s", "/ARM_s")
            for arm in ("real", "synthetic", "half", "both")
        }
        assert len(trained) == 1
        real, simulated = (next(calls(steps[f"{name}:0"])) for name in ("real", "synthetic"))
        tasks = int(real[real.index("--count") + 1])
        assert simulated[simulated.index("--tasks") + 1] == str(tasks)
        for flag in ("--policy", "--seed", "--max-new-tokens"):  # of one policy, and the same tasks
            assert real[real.index(flag) + 1] == simulated[simulated.index(flag) + 1]
    checks = [
        step for step in steps_of("verify_shop_tiny", "trl") if step.family in ("unchecked", "checked", "controlled")
    ]
    budgets = [step.commands[0][step.commands[0].index("--budget") + 1] for step in checks]
    assert budgets == ["0", *("2", "4", "10", "50") * 4]  # the paper's
    assert len({step.commands[0][3:7] for step in checks}) == 1  # the same tasks
    mine = chosen(steps_of("verify_shop_tiny", "trl", "model=/dev/null"), ["table"])
    assert "train" not in {step.family for step in mine}  # another world model checks without a training


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_another_arm_or_file_runs_nothing_that_does_not_depend_on_it(host):
    for name, world in (("sim_rl", "world_model"), ("sim_rl_tiny", "world")):
        steps = {step.name: step for step in steps_of(name, host)}
        real, sim = ({one.partition(":")[0] for one in steps[f"train:{arm}:0"].after} for arm in ("real", "sim"))
        assert sim - real == {world}
        assert str(RECIPES / "pipelines" / "sim_control_tiny.yaml") in steps["episodes"].needs
    for name in ("rwml_rl", "lwm_warm_up", "early_experience"):
        steps = {step.name: step for step in steps_of(name, host, "world=tau2")}
        # with another model or customer these go, too: the script leaves a file that is there
        assert f"runs/{name}/{host}_tau2/rollouts" in steps["rollouts"].makes


def test_a_world_that_a_method_does_not_have_is_one_line(capsys):
    assert main(["lab", "pipeline", "baselines", "--list", "--set", "world=scienceworld"]) == 2
    assert "world is 'scienceworld'; there is 'alfworld', 'tau2'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rwml_rl", "lwm_warm_up", "early_experience"])
def test_the_customer_of_a_setting_plays_everywhere(name):
    steps = steps_of(name, "trl", "world=tau2 seeds=0 customer=http://mine/v1")
    assert {step.env["CUSTOMER"] for step in steps} == {"http://mine/v1"}
    assert "localhost:8002" not in text_of(steps)


def bash(folder, script, *words, **variables):
    """A script's exit code, and what it said; programs in the folder's bin are found first."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(RECIPES / "pipelines" / script), *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, **variables}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def programs(folder, **texts):
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)


@pytest.mark.parametrize("world", ["alfworld", "scienceworld", "tau2"])
def test_worlds_are_played_as_rwml_has_them(world, tmp_path):
    programs(tmp_path, python='echo "$@" >> calls')
    assert bash(tmp_path, "worlds.sh", "rollouts", world, "m", "o.jsonl", WM_SERVED="1", CUSTOMER="http://c/v1")[0] == 0
    played = (tmp_path / "calls").read_text().splitlines()
    assert all("--per-task 3" in call and "--max-turns 30" in call and "--temperature 1" in call for call in played[:6])
    if world == "alfworld":
        assert "--level data --count 2048" in played[0]
    if world == "tau2":  # N = 6: three with each customer, of all 178 train tasks
        tasks = re.findall(r"--level (\w+) --count (\d+)", "\n".join(played))
        assert tasks == [("retail", "74"), ("airline", "30"), ("telecom", "74")] * 2
        assert [call.count("user_model=gpt-4.1") for call in played[:6]] == [1, 1, 1, 0, 0, 0]
        assert [call.count("user_url=http://c/v1") for call in played[:6]] == [0, 0, 0, 1, 1, 1]
        assert [re.search(r"--sampling-seed (\d)", call)[1] for call in played[:6]] == [*"111222"]
    (tmp_path / "calls").unlink()
    flags = ["--seed", "3", "--max-turns", "7"]
    assert (
        bash(tmp_path, "worlds.sh", "held_out", world, "m", "o", *flags, WM_SERVED="1", CUSTOMER="http://c/v1")[0] == 0
    )
    played = (tmp_path / "calls").read_text().splitlines()
    counts = {"alfworld": ["140", "134"], "scienceworld": ["200", "200"], "tau2": ["40", "20", "40"]}[world]
    assert [re.search(r"--count (\d+)", call)[1] for call in played] == counts
    assert all(call.endswith("--seed 3 --max-turns 7") for call in played)


def test_a_server_that_is_there_already_is_not_taken_for_the_models(tmp_path):
    with socket.socket() as mine:
        with suppress(OSError):  # in use by another, which is as good
            mine.bind(("127.0.0.1", 8000))
            mine.listen()
        code, out, error = bash(tmp_path, "beside_vllm.sh", "some/model", "echo", "asked")
    assert (code, out) == (1, "")
    assert error == "beside_vllm.sh: a server is at port 8000 already; end it, or run one step at a time\n"


def test_a_large_model_is_spread_over_gpus_and_its_server_ends(tmp_path):
    if socket.socket().connect_ex(("127.0.0.1", 8000)) == 0:
        pytest.skip("port 8000 is in use")
    programs(tmp_path, vllm='echo "$@" > calls\necho $$ > process\nexec sleep 100', curl="sleep 0.2; [ -s calls ]")
    assert bash(tmp_path, "beside_vllm.sh", "some/model", "echo", "asked")[:2] == (0, "asked\n")
    assert "--tensor-parallel-size 1 --data-parallel-size 8" in (tmp_path / "calls").read_text()
    assert bash(tmp_path, "beside_vllm.sh", "some/model", "false", TENSOR_PARALLEL="4")[0] == 1
    assert "--tensor-parallel-size 4 --data-parallel-size 2" in (tmp_path / "calls").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)
    programs(tmp_path, vllm="exit 3", curl="exit 7")
    assert bash(tmp_path, "beside_vllm.sh", "some/model", "true")[2] == "beside_vllm.sh: vllm serve some/model ended\n"


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
    assert "\ntrain:mixed:4\n    python -m wm_plugin.lab.tiny serve --model runs/sim_rl_tiny/trl/world_s4 bash" in shown
    assert main(["lab", "pipeline", "sim_rl_tiny", "--list", "--json", "--out", "x"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[-1]["name"] == "report"
    assert steps[-1]["makes"] == ["x/report.html", "x/report.json"]


def test_jobs_and_launchers_are_checked(capsys):
    assert main(["lab", "pipeline", "sim_rl_tiny", "--jobs", "0"]) == 2
    assert "--jobs is 0; write a number >= 1" in capsys.readouterr().err
    with pytest.raises(UserError, match="no such step"):
        chosen(steps_of("sim_rl_tiny", "trl"), ["nothing_like_it"])
    with pytest.raises(UserError, match=r"step pairs needs stabletoolbench\.jsonl, which is not there"):
        check_inputs(steps_of("word2world", "trl", "study=mixture"))


def test_pairs_of_mirrorapi_are_read_into_the_mixture(tmp_path, capsys):
    said = [("user", "API doc: {}\nRequest: {}"), ("assistant", '{"error": "", "response": "[1, 2]"}')]
    row = {"conversations": [{"role": role, "content": text} for role, text in said], "id": 3}
    settings = ["--set", "study=mixture"]
    for name in ("pairs", "pairs_test"):
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n")
        settings += ["--set", f"{name}={tmp_path / name}.jsonl"]
    assert main(["lab", "pipeline", "word2world", *settings, "--only", "pairs", "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    for made in ("pairs.jsonl", "held_out/stabletoolbench.jsonl"):
        (read_row,) = map(json.loads, (tmp_path / "runs" / made).read_text().splitlines())
        assert read_row["turns"][0]["observations"][0]["text"] == said[1][1]
