"""The launchers of recipes, by programs that note how they are called: rows, flags that hosts share, and the table of recipes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recipes import page, read
from recipes.__main__ import main
from support.scripts import DATA, RECIPES, calls_of, listed
from wm_plugin.errors import install
from wm_plugin.hosting import config_file

HOSTS = ("trl", "verl")
NAMES = [(host, name) for host in HOSTS for name in listed(host)]
TRAINERS = ("trl", "torchrun", "wm_plugin.trl.train", "verl.trainer.main_ppo")
MODELS = {"wm_sft_word2world": "", "wm_cpt_agentworld": ""}  # what is no Instruct model


def value(call, flag):
    return call[call.index(flag) + 1]


def is_training(call):
    return bool({*TRAINERS} & {*call})


def steps(calls):
    """The calls of `wm`, without the program."""
    return [call[3:] for call in calls if call[:3] == ["python", "-m", "wm_plugin"]]


def test_every_recipe_has_one_line_that_names_what_there_is():
    found = read()
    names = [(one.host, one.name) for one in found]
    assert len(names) == len(set(names)) > 90
    assert {one.system for one in found} == {"ECHO", "RWML", "WMAct", "Word2World", "Qwen-AgentWorld", "ours"}
    assert {one.run_here for one in found} == {"yes", "no"}
    for one in found:
        assert (one.run_here == "yes") == bool(re.search("_tiny$|_135m$", one.name)), one.name
    algorithms = {"GRPO", "GSPO", "PPO", "SFT", "CPT"}
    assert all({*one.algorithm.split(", ")} <= algorithms for one in found)
    on_trl, on_verl = listed("trl"), listed("verl")
    assert set(on_trl) ^ set(on_verl) == {"echo_ppo", "echo_ppo_tiny", "wmact_ppo", "wmact_ppo_tiny", "words_sft_tiny"}
    assert {one for host in HOSTS for one in (RECIPES / host).glob("*.yaml") if "#: " not in one.read_text()} == {
        RECIPES / f"{name}.yaml"
        for name in (
            *("trl/accelerate_fsdp2", "trl/echo_4b", "trl/gpu", "trl/gspo", "trl/rwml_tiny_prompts", "trl/tiny"),
            *("verl/gpu", "verl/tiny_cpu"),
        )
    }


@pytest.mark.parametrize(("host", "name"), NAMES)
def test_a_recipe_is_trained_into_its_folder_and_takes_further_arguments(host, name, tmp_path):
    *_, last = calls_of(host, name, tmp_path, "--x", "a b", **DATA)
    assert is_training(last)
    assert last[-2:] == ["--x", "a b"]
    folder = f"runs/{name}"
    if host == "verl":
        assert f"trainer.default_local_dir={folder}" in last
        assert value(last, "--config-name") == listed(host)[name].config.stem
        assert value(last, "--config-path") == "pkg://wm_plugin.recipes.verl"
    else:
        assert value(last, "--output_dir") == folder
        large = listed("trl")[name].run_here == "no"
        files = {value(last, flag) for flag in ("--config_file", "--accelerate_config") if flag in last}
        assert files == ({str(RECIPES / "trl" / "accelerate_fsdp2.yaml")} if large else set())


@pytest.mark.parametrize("host", HOSTS)
def test_flags_that_hosts_share_become_the_hosts_own(host, tmp_path):
    flags = ["--model", "m", "--out", "o", "--seed", "3", "--steps", "7", "--coeff", "0.2"]
    (rl,) = calls_of(host, "sim_table_tiny", tmp_path / "rl", *flags)[-1:]
    (sft,) = calls_of(host, "agent_sft_tiny", tmp_path / "sft", *flags[:8], "--rows", "r.parquet", "--batch", "2")
    reward = '{"path": "exact", "kwargs": {"tag": ""}}'
    (predicts,) = calls_of(
        host, "rwml_gspo_tiny", tmp_path / "predicts", *flags[:8], "--data", "d", "--rewards", reward
    )[-1:]
    if host == "trl":
        shared = ["--model_name_or_path", "m", "--seed", "3", "--max_steps", "7"]
        for call in (rl, sft, predicts):
            assert [*shared, "--output_dir", "o"] == [
                w for f in (*shared[::2], "--output_dir") for w in (f, value(call, f))
            ]
        assert (value(rl, "--echo_coeff"), value(rl, "--save_steps")) == ("0.2", "7")
        assert value(sft, "--per_device_train_batch_size") == "2"
        written = yaml.safe_load((tmp_path / "sft/o/sft.yaml").read_text())
        assert written["datasets"] == [{"path": "parquet", "data_files": "r.parquet"}]
        assert "defaults" not in written
        assert (value(predicts, "--dataset_name"), value(predicts, "--rewards")) == ("d", reward)
        assert value(predicts, "--eval_steps") == "7"
    else:
        assert {"trainer.default_local_dir=o", "trainer.total_training_steps=7"} <= {*rl} & {*sft} & {*predicts}
        assert {"actor_rollout_ref.model.path=m", "data.seed=3", "actor_rollout_ref.rollout.seed=3"} <= {*rl} & {
            *predicts
        }
        assert {"wm.coeff=0.2", "trainer.save_freq=7"} <= {*rl}
        assert {"model.path=m", "trainer.seed=3", "data.train_files=r.parquet", "data.train_batch_size=2"} <= {*sft}
        assert {"data.train_files=d/train.parquet", "data.val_files=d/test.parquet"} <= {*predicts}
        assert {"~wm.reward", '+wm.reward={path: "exact", kwargs: {tag: ""}}'} <= {*predicts}
        assert {"+method=gspo", "trainer.test_freq=7"} <= {*predicts}


def test_rows_and_worlds_of_flags_are_verls_own_files_and_settings(tmp_path):
    server = '{"url": "http://h/v1", "closings": ["!"]}'
    flags = ["--environment", '{"grid": "grid", "sim": "grid"}', "--simulation", server]
    flags += [
        "--train_rows",
        "wm_plugin.worlds.mixture:dataset_rows",
        "--train_rows_kwargs",
        '{"environments": {"grid": 2}}',
    ]
    *_, rows, last = calls_of("verl", "sim_table_tiny", tmp_path, "--out", "o", "--model", "m", *flags)
    assert rows[2:4] == [str(RECIPES / "trl/echo_grpo_tiny.yaml"), "o/rows"]
    assert rows[4:] == [
        "train_rows=wm_plugin.worlds.mixture:dataset_rows",
        'train_rows_kwargs={"environments": {"grid": 2}}',
    ]
    assert {"data.train_files=o/rows/train.parquet", "data.val_files=[o/rows/train.parquet]"} <= {*last}
    assert {"~wm.environment", '+wm.environment={grid: "grid", sim: "grid"}'} <= {*last}
    assert 'wm.simulation={url: "http://h/v1", closings: ["!"]}' in last


@pytest.mark.parametrize("host", HOSTS)
def test_episodes_have_the_turns_and_the_customer_that_are_asked_for(host, tmp_path):
    *_, last = calls_of(host, "echo_forth_code", tmp_path / "turns", TURNS="10")
    recipe = yaml.safe_load((tmp_path / "turns/runs/echo_forth_code/recipe.yaml").read_text())
    assert recipe["train_rows_kwargs"]["environments"]["forth"]["max_turns"] == 10
    assert recipe["eval_rows_kwargs"]["forth"]["environments"]["forth"]["max_turns"] == 10
    if host == "trl":
        assert value(last, "--config") == "runs/echo_forth_code/recipe.yaml"
        assert value(last, "--max_tool_calling_iterations") == "12"  # what wordle and sql take
        return
    *_, last = calls_of(host, "policy_tau2", tmp_path / "customer", CUSTOMER="http://mine/v1")
    recipe = (tmp_path / "customer/runs/policy_tau2/recipe.yaml").read_text()
    assert recipe.count("http://mine/v1") == 6
    assert "localhost:8002" not in recipe
    assert "data.val_files=[runs/policy_tau2/rows/test.parquet]" in last


def test_what_is_there_is_not_made_again(tmp_path):
    first = calls_of("verl", "echo_grpo_tiny", tmp_path / "a")
    assert [call[1] for call in first[:1]] == ["-m"]
    work = tmp_path / "b"
    for place in ("runs/tiny_random/config.json", "runs/rows/echo_grpo_tiny/train.parquet"):
        (work / place).parent.mkdir(parents=True)
        (work / place).touch()
    assert len(first) == 3
    assert [is_training(call) for call in calls_of("verl", "echo_grpo_tiny", work)] == [True]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    "name", sorted(name for name, one in listed("verl").items() if one.algorithm in ("SFT", "CPT"))
)
def test_rows_of_sft_are_built_as_the_recipe_trains_them(host, name, tmp_path):
    *calls, last = calls_of(host, name, tmp_path, **DATA)
    *_, built = [call for call in calls if "build" in call or "best" in call]
    file, large = f"runs/{name}/{host}.parquet", listed(host)[name].run_here == "no"
    assert (value(built, "--out"), value(built, "--host")) == (file, host)
    assert ("best" in built) is ("wm_sft_agentworld" in name)  # with thoughts
    assert (built.count("--corpus") == (2 if large else 1)) is ("cpt" in name)
    model = f"Qwen/Qwen2.5-7B{MODELS.get(name, '-Instruct')}"
    if host == "trl":
        config = yaml.safe_load((tmp_path / f"runs/{name}/sft.yaml").read_text())
        assert config["datasets"] == [{"path": "parquet", "data_files": file}]
        longest = value(last, "--max_length") if "--max_length" in last else str(config["max_length"])
        named = value(last, "--model_name_or_path") if "--model_name_or_path" in last else config["model_name_or_path"]
    else:
        assert f"data.train_files={file}" in last
        config = yaml.safe_load(listed(host)[name].config.read_text())
        words = dict(word.split("=", 1) for word in last if "=" in word and not word.startswith("-"))
        longest, named = (
            words.get("data.max_length", str(config["data"]["max_length"])),
            words.get("model.path", config["model"]["path"]),
        )
    if large:
        assert (value(built, "--max-tokens"), value(built, "--tokenizer")) == (longest, named) == (longest, model)
    if name == "wm_sft_rwml":
        (filtered,) = [call for call in calls if "filter" in call]
        assert "invalid_actions" in value(filtered, "--filters")
        assert value(filtered, "--out") in built
    if large and "agentworld" in name:
        (filtered,) = [call for call in calls if "filter" in call]
        assert (value(filtered, "--for"), value(filtered, "--domain")) == (
            "agentworld",
            "mcp",
        )  # how worlds refuse is learnt
    if "agent_sft" in name:
        assert value(built, "--as") == ("imitation" if large else "rft")
    if name in ("wm_sft_word2world", "agent_sft"):
        assert value(built, "--too-long") == "truncate"
        assert not [call for call in calls if "filter" in call]  # failed actions are targets


def test_rwmls_own_samples_are_taken(tmp_path):
    calls = steps(calls_of("trl", "wm_sft_rwml", tmp_path, TRANSITIONS="hard.jsonl"))
    assert [call[1:3] for call in calls] == [["build", "hard.jsonl"]]


@pytest.mark.parametrize("host", HOSTS)
def test_several_domains_are_one_training(host, tmp_path):
    *calls, last = calls_of(host, "agentworld_gspo", tmp_path, TRAJECTORIES="mine", DOMAIN="mcp os")
    end = {"trl": "jsonl", "verl": "parquet"}[host]
    called = steps(calls)
    assert [call[2] for call in called if call[1] == "filter"] == ["mine/mcp.jsonl", "mine/os.jsonl"]
    assert {value(call, "--turns") for call in called if call[1] == "expand"} == {"one"}
    built = [call for call in called if call[1] == "build"]
    assert [value(call, "--prompts") for call in built] == ["mcp", "mcp", "os", "os"]
    for part in ("train", "test"):
        files = [f"runs/agentworld/{domain}/data/{part}.{end}" for domain in ("mcp", "os")]
        out = f"runs/agentworld/data/{part}.{end}"
        assert ["lab", "mix", *files, "--count", "all", "--out", out] in called
        assert set(files) <= {value(call, "--out") for call in built}
    assert "runs/agentworld/data" in last or "data.train_files=runs/agentworld/data/train.parquet" in last


@pytest.mark.parametrize("host", HOSTS)
def test_the_hosts_make_the_same_data(host, tmp_path):
    """Of predictions on the SQL tasks: rows of held-out tasks validate."""
    *calls, last = calls_of(host, "rwml_grpo_tiny", tmp_path)
    called = [call[1:] for call in steps(calls)]
    rows = [call for call in called if call[0] == "build" and value(call, "--as") == "rwml"]
    assert [call[1] for call in rows] == [f"runs/rwml_tiny/transitions{end}.jsonl" for end in ("", ".validation")]
    assert [value(call, "--split") for call in rows] == ["train", "test"]
    assert any("rwml_sft_tiny" in word for call in calls for word in call)  # the start
    assert "runs/rwml_sft_tiny/model" in " ".join(last)


def test_the_tiny_judge_is_there_while_its_recipe_trains(tmp_path):
    for host in HOSTS:
        *_, last = calls_of(host, "agentworld_gspo_tiny", tmp_path / host)
        assert last[:5] == ["python", "-m", "wm_plugin.lab.tiny", "judge", "python"]


def test_several_processes_and_machines(tmp_path):
    *_, last = calls_of("trl", "echo_grpo_tiny", tmp_path / "two", PROCESSES="2")
    assert (last[:3], value(last, "--num_processes")) == (["accelerate", "launch", "--multi_gpu"], "2")
    page = (RECIPES.parent / "docs" / "trl.md").read_text()
    (line,) = re.findall(r"accelerate launch (--multi_gpu.*?) \\\n", page)
    assert line == " ".join(last[2 : last.index("-m")])
    (last,) = calls_of("trl", "echo_forth_all_glm", tmp_path / "four", LAUNCH="--num_machines 4")
    assert value(last, "--num_machines") == "4"
    *_, last = calls_of("verl", "agent_sft_tiny", tmp_path / "sft", PROCESSES="2")
    assert "--nproc_per_node=2" in last


def test_the_installed_package_starts_them(monkeypatch, capsys):
    called = []
    there = ["trl", "verl"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr("os.execvp", lambda program, words: called.append([program, *words]))
    monkeypatch.setenv("PATH", "/usr/bin")
    main(["verl", "echo_grpo_tiny", "wm.coeff=0"])
    assert called == [["bash", "bash", str(RECIPES / "verl" / "run.sh"), "echo_grpo_tiny", "wm.coeff=0"]]
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"  # its `python` is this one
    main([])
    assert capsys.readouterr().out == page()
    with pytest.raises(SystemExit, match="2"):
        main(["echo_grpo_tiny"])
    assert capsys.readouterr().err == "wm_plugin.recipes: the first word is trl or verl, not 'echo_grpo_tiny'\n"
    there.remove("verl")
    with pytest.raises(SystemExit, match="2"):
        main(["verl", "echo_grpo_tiny"])
    assert capsys.readouterr().err == f"wm_plugin.recipes verl needs verl: {install('verl')}\n"


def test_a_tiny_recipe_of_verl_chooses_the_cpu_and_no_other_does():
    said = (RECIPES / "verl" / "run.sh").read_text()
    assert said.count("VERL_PLATFORM") == 2
    assert '[ -z "$tiny" ] || export VERL_PLATFORM=${VERL_PLATFORM:-cpu}\n' in said
    for one in listed("verl").values():
        text = one.config.read_text()
        if "sft" not in text.partition("defaults: [")[2].partition("]")[0]:
            assert ("cpu], tiny_cpu" in text) == (one.run_here == "yes"), one.name


def launched(folder, *words, **variables):
    command = [str(folder / "run.sh"), *words]
    return subprocess.run(command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True)


def test_mistakes_are_one_line(tmp_path):
    for words, said in (
        (["echo_gropo"], "there is no recipe 'echo_gropo'; recipes/README.md lists them"),
        ([], "there is no recipe ''"),
        (["echo_grpo_tiny", "--model"], "--model needs a value"),
    ):
        shutil.copytree(RECIPES, tmp_path / "recipes", dirs_exist_ok=True)
        done = launched(tmp_path / "recipes" / "trl", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr
    done = launched(tmp_path / "recipes" / "trl", "wm_sft_word2world", TRAJECTORIES="")
    assert "TRAJECTORIES: a file of rollouts" in done.stderr


def test_verls_log_is_whole_after_a_kill(tmp_path):
    """A start of verl empties the file; a kill may cut a line."""
    programs, out = tmp_path / "programs", tmp_path / "o"
    programs.mkdir()
    out.mkdir()

    def start(text, code):
        (tmp_path / "text").write_text(text)
        (programs / "python").write_text(
            f'#!/bin/sh\ncase "$*" in *main_ppo*) cat {tmp_path}/text > "$VERL_FILE_LOGGER_PATH"; exit {code} ;; esac\n'
        )
        (programs / "python").chmod(0o755)
        environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        command = [str(RECIPES / "verl/run.sh"), "rwml_alfworld_grpo", "--out", "o"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True).returncode

    def line(step):
        return json.dumps({"step": step, "data": {"reward": step}}) + "\n"

    assert start(line(1) + line(2) + '{"step":3,"da', 9) == 9
    assert start("", 9) == 9  # killed before its first step
    assert start(line(2) + line(3), 9) == 9
    assert start(line(4), 0) == 0
    assert (out / "log.jsonl").read_text() == line(1) + line(2) + line(2) + line(3) + line(4)
    assert [path.name for path in out.iterdir()] == ["log.jsonl"]


def test_the_last_model_is_found_in_one_place(tmp_path):
    for name in ("global_step_2", "global_step_10"):
        (tmp_path / "runs/rwml_alfworld_grpo" / name / "actor/huggingface").mkdir(parents=True)
    calls_of("verl", "rwml_alfworld_grpo", tmp_path)
    assert os.readlink(tmp_path / "runs/rwml_alfworld_grpo/model") == "global_step_10/actor/huggingface"
    calls_of("trl", "echo_grpo_tiny", tmp_path / "trl")
    assert (tmp_path / "trl/runs/echo_grpo_tiny/model").resolve() == tmp_path / "trl/runs/echo_grpo_tiny"


def test_large_models_keep_their_weights_in_float32_and_are_written():
    """Steps of this size vanish in bf16 weights; a trainer whose state stays sharded writes no model, and says nothing."""
    for name, one in listed("trl").items():
        if one.run_here == "no":
            settings = config_file.read(str(one.config))
            assert (settings["dtype"], settings["bf16"]) == ("float32", True), name
    config = yaml.safe_load((RECIPES / "trl" / "accelerate_fsdp2.yaml").read_text())
    assert config["fsdp_config"]["fsdp_state_dict_type"] == "FULL_STATE_DICT"
