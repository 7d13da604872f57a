"""The scripts of recipes; RWML's pipelines from a world to the host's trainer, by programs that note how they are called."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from support.scripts import calls_of

RECIPES = Path(__file__).parents[1] / "recipes"
NOTE = """#!/bin/sh
{ echo NAME; for argument; do printf "%s\\n" "$argument"; done; echo --; } >> "$NOTES"
"""
PROGRAMS = {
    **dict.fromkeys(("python", "trl", "torchrun", "accelerate"), 'case "$*" in *"$FAILING"*) exit 3 ;; esac\n'),
    "vllm": '[ "$FAILING" = vllm ] && exit 3\necho $$ > "$NOTES.server"\nexec sleep 100\n',
    "curl": '[ "$FAILING" = vllm ] && exit 7\nuntil rm "$NOTES.server" 2> /dev/null; do sleep 0.02; done\n',
}
MODELS = {"alfworld": "Qwen/Qwen2.5-7B-Instruct", "tau2": "Qwen/Qwen3-8B"}
HOSTS = ("trl", "verl")


def run(script, folder, *, failing="no such word", **variables):
    """The exit code of a recipe's script, the calls of programs, each a list of words, and what it said."""
    notes = folder / "notes"
    (folder / "bin").mkdir(exist_ok=True)
    for program, body in PROGRAMS.items():
        path = folder / "bin" / program
        # curl's calls would stand in the middle of the server's, which begins at the same time
        path.write_text(("#!/bin/sh\n" if program == "curl" else NOTE.replace("NAME", program)) + body)
        path.chmod(0o755)
    notes.write_text("")
    ours = ("TRAJECTORIES", "ALGORITHM", "CUSTOMER", "EMBEDDINGS", "GPUS")
    environment = {
        **{name: text for name, text in os.environ.items() if name not in ours},
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "NOTES": str(notes),
        "FAILING": failing,
        **variables,
    }
    done = subprocess.run(
        [RECIPES / script, "--x", "a b"], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    calls = [call.strip().split("\n") for call in notes.read_text().split("--\n") if call.strip()]
    return done.returncode, calls, done.stderr


def test_every_script_calls_scripts_that_there_are():
    """Those beside it and in the pipelines, in a wheel as in a checkout; and each pipeline is called."""
    called = set()
    for path in RECIPES.glob("*/*.sh"):
        code = "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("#"))
        for folder, name in re.findall(r'(\w*)/(\w+\.sh)"', code):
            script = (RECIPES / folder if folder in ("pipelines", "trl", "verl") else path.parent) / name
            assert script.is_file(), f"{path.name}: {folder}/{name}"
            called.add(script)
    for path in RECIPES.glob("pipelines/*.yaml"):
        for name in re.findall(r"\{here\}/(\w+\.sh)", path.read_text()):
            script = RECIPES / "pipelines" / name
            assert script.is_file(), f"{path.name}: {name}"
            called.add(script)
    assert set(RECIPES.glob("pipelines/*.sh")) <= called


def test_scripts_run_where_a_wheel_puts_them(tmp_path):
    """Beside the pipelines, of which none needs to be executable; those that need the tests say so in one line."""
    recipes = tmp_path / "wm_plugin" / "recipes"
    shutil.copytree(RECIPES, recipes, ignore=shutil.ignore_patterns("__pycache__"))
    for path in recipes.glob("pipelines/*.sh"):
        path.chmod(0o644)
    *_, last = calls_of(recipes / "trl" / "run_echo_forth_all.sh", tmp_path, "--x", "a b")
    assert value(last, "--config") == str(recipes / "trl" / "echo_forth_all.yaml")
    assert last[-2:] == ["--x", "a b"]
    script = [recipes / "verl" / "run_echo_grpo_tiny.sh"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    missing = f"there is no {tmp_path}/wm_plugin/tests/support/verl_cpu"
    assert (done.returncode, done.stderr) == (2, f"run_echo_grpo_tiny.sh runs from a checkout only: {missing}\n")


def test_what_is_trained_on_several_gpus_is_written():
    """By accelerate's one file of TRL's recipes: a trainer whose state stays sharded writes no model, and says nothing."""
    config = yaml.safe_load((RECIPES / "trl" / "accelerate_fsdp2.yaml").read_text())
    assert config["fsdp_config"]["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    for path in RECIPES.glob("*/*.sh"):
        text = path.read_text()
        files = re.findall(r'--(?:config_file|accelerate_config) "\S*/(\S+)"', text)
        assert set(files) <= {"accelerate_fsdp2.yaml"}, path.name
        assert bool(files) == ("accelerate launch --config_file" in text or "--accelerate_config" in text), path.name
        assert "state_dict_type" not in text, path.name


def steps(calls):
    """The calls of `wm`, by what they do, without the program."""
    return [call[3:] for call in calls if call[:3] == ["python", "-m", "wm_plugin.cli.main"]]


def value(call, flag):
    return call[call.index(flag) + 1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the two worlds' scripts call, on both hosts."""
    return {
        (world, host): run(
            f"{host}/run_rwml_{world}.sh", tmp_path_factory.mktemp(f"{world}_{host}"), CUSTOMER="http://customer/v1"
        )
        for world in MODELS
        for host in HOSTS
    }


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("world", MODELS)
def test_rollouts_filter_easy_mask_build_train(runs, world, host):
    code, calls, errors = runs[world, host]
    assert code == 0, errors
    work, model = f"runs/rwml_{world}", MODELS[world]
    names = [" ".join(call[:2]) for call in steps(calls)]
    rollouts = {"alfworld": ["env rollout"], "tau2": ["env rollout"] * 6 + ["data convert"]}[world]
    assert names == [*rollouts, "data filter", "data expand", "data build", "data easy", "data build", "data build"]
    played = [call for call in steps(calls) if call[:2] == ["env", "rollout"]]
    assert all((value(call, "--per-task"), value(call, "--temperature")) == ("3", "1") for call in played)
    assert all(value(call, "--max-turns") == "30" for call in played)
    if world == "alfworld":
        assert (value(played[0], "--level"), value(played[0], "--count")) == ("data", "2048")
    else:  # N = 6: three with each customer, of all 178 train tasks
        tasks = [(value(call, "--level"), value(call, "--count")) for call in played]
        assert tasks == [("retail", "74"), ("airline", "30"), ("telecom", "74")] * 2
        assert len({value(call, "--out") for call in played}) == 6
        assert [value(call, "--sampling-seed") for call in played] == ["1"] * 3 + ["2"] * 3
        assert [value(call, "--column") for call in played[2:4]] == [
            "user_model=gpt-4.1",
            "user_model=Qwen/Qwen3-235B-A22B-Instruct-2507",
        ]
        assert "user_url=http://customer/v1" in played[3]
    # each step reads what the one before it wrote
    *_, filtered, expanded, labelled, easy, train, test = steps(calls)
    assert filtered[2] == f"{work}/rollouts.jsonl"
    assert [flag in filtered for flag in ("--mask-values", "--profile")] == [world == "tau2"] * 2
    assert (expanded[2], value(expanded, "--validation-share")) == (value(filtered, "--out"), "0.1")
    transitions = value(expanded, "--out")
    held_out = transitions.replace(".jsonl", ".validation.jsonl")
    assert (labelled[2], value(labelled, "--as")) == (held_out, "rwml-sft")
    assert easy[2] == transitions
    threshold = {"alfworld": "0.1", "tau2": "0.15"}[world]
    constants = {"--k": "10", "--tau-easy": "0", "--keep": "0.1", "--threshold": threshold}
    assert {flag: value(easy, flag) for flag in constants} == constants
    assert (value(easy, "--embedding-model"), value(easy, "--temperature")) == ("Qwen/Qwen3-Embedding-8B", "1")
    assert [train[2], test[2]] == [value(easy, "--out"), held_out]
    prompts = {"alfworld": "rwml", "tau2": "rwml-completion"}[world]
    assert {value(call, "--prompts") for call in (labelled, easy, train, test)} == {prompts}
    assert {value(call, "--host") for call in (labelled, train, test)} == {host}
    assert {value(call, "--tokenizer") for call in (labelled, train, test)} == {model}
    # the model that acts, and then the filter model, have a server while they are asked
    assert next(call[:3] for call in calls if call[0] == "vllm") == ["vllm", "serve", model]
    order = [call[0] if call[0] != "python" else " ".join(call[3:5]) for call in calls]
    trainer = {"trl": "trl", "verl": "torchrun"}[host]
    assert order.index("vllm") < order.index("env rollout") < order.index(trainer)
    assert order[order.index("data easy") - 1] == "vllm"
    (served,) = [call[2] for call in calls if call[0] == "vllm"][1:]
    assert served.startswith(f"{work}/filter")


@pytest.mark.parametrize("world", MODELS)
def test_the_hosts_have_the_same_data(runs, world):
    def same(host):
        words = {"verl": {"verl": "H", ".parquet": ""}, "trl": {"trl": "H", "data/": "", ".jsonl": ""}}[host]
        for call in steps(runs[world, host][1]):
            for word, instead in {**words, ".jsonl": "", ".parquet": ""}.items():
                call = [part.replace(word, instead) for part in call]
            yield call

    assert list(same("trl")) == list(same("verl"))


@pytest.mark.parametrize("world", MODELS)
def test_the_filter_model_is_trained_by_the_hosts_own_trainer(runs, world, tmp_path):
    work, model = f"runs/rwml_{world}", MODELS[world]
    (trl,) = [call for call in runs[world, "trl"][1] if call[0] == "trl"]
    assert trl[1:3] == ["sft", "--config"]
    assert value(trl, "--model_name_or_path") == model
    labelled = next(call for call in steps(runs[world, "trl"][1]) if "rwml-sft" in call)
    # the recipe of WM-SFT, in another folder
    recipe = (RECIPES / "trl" / "wm_sft_rwml.yaml").read_text().replace("runs/wm_sft_rwml", f"{work}/filter")
    config = yaml.safe_load(recipe)
    assert config["datasets"][0]["data_files"] == value(labelled, "--out")
    assert config["output_dir"] == f"{work}/filter"
    (verl,) = [call for call in runs[world, "verl"][1] if call[0] == "torchrun"]
    labelled = next(call for call in steps(runs[world, "verl"][1]) if "rwml-sft" in call)
    assert value(verl, "--config-name") == "wm_sft_rwml"
    assert f"model.path={model}" in verl
    assert f"data.train_files={value(labelled, '--out')}" in verl


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
@pytest.mark.parametrize("world", MODELS)
def test_the_trainer_gets_the_recipe_and_reads_the_rows(world, algorithm, tmp_path):
    written = {}
    for host in HOSTS:
        folder = tmp_path / host
        folder.mkdir()
        (folder / "mine.jsonl").write_text("")
        code, calls, errors = run(f"{host}/run_rwml_{world}.sh", folder, ALGORITHM=algorithm, TRAJECTORIES="mine.jsonl")
        assert code == 0, errors
        assert steps(calls)[0][:3] == ["data", "filter", "mine.jsonl"]  # no rollouts, and no server for them
        assert sum(call[0] == "vllm" for call in calls) == 1
        written[host] = [value(call, "--out") for call in steps(calls)[-2:]]
        assert calls[-1][-2:] == ["--x", "a b"]
        last = calls[-1]
        if host == "trl":
            assert value(last, "-m") == "wm_plugin.trl.train"
            assert Path(value(last, "--config")).name == f"rwml_{world}_{algorithm}.yaml"
            config = yaml.safe_load(Path(value(last, "--config")).read_text())
            assert [f"{config['dataset_name']}/{split}.jsonl" for split in ("train", "test")] == written["trl"]
        else:
            assert value(last, "-m") == "verl.trainer.main_ppo"
            assert value(last, "--config-name") == f"rwml_{world}_{algorithm}"
            config = yaml.safe_load((RECIPES / "verl" / f"rwml_{world}_{algorithm}.yaml").read_text())
            assert [config["data"][name] for name in ("train_files", "val_files")] == written["verl"]


def test_a_step_that_fails_ends_the_run_and_the_next_run_goes_on(tmp_path):
    """The server of a failed step ends with it: what waits for its output would wait as long as it runs."""
    code, calls, _ = run("trl/run_rwml_alfworld.sh", tmp_path, failing="env rollout")
    assert code == 3
    assert [call[0] for call in calls] == ["vllm", "python"]
    work = tmp_path / "runs" / "rwml_alfworld"
    for name in ("rollouts.jsonl", "filtered.jsonl", "transitions.validation.jsonl", "filter/config.json"):
        (work / name).write_text("")
    code, calls, errors = run("trl/run_rwml_alfworld.sh", tmp_path)
    assert code == 0, errors
    assert [" ".join(call[:2]) for call in steps(calls)] == ["data build", "data easy", "data build", "data build"]
    assert not [call for call in calls if call[0] == "trl"]


def test_a_server_that_does_not_start_is_one_line(tmp_path):
    code, calls, errors = run("verl/run_rwml_alfworld.sh", tmp_path, failing="vllm")
    assert code == 1
    assert errors == f"rwml.sh: vllm serve {MODELS['alfworld']} ended\n"
    assert not steps(calls)


def test_the_second_customer_needs_an_address(tmp_path):
    code, calls, errors = run("trl/run_rwml_tau2.sh", tmp_path)
    assert code != 0
    assert "CUSTOMER: the address of a server of the second customer" in errors
    assert not steps(calls)


@pytest.mark.parametrize("host", HOSTS)
def test_the_tiny_pipeline_validates_on_rows_filtered_as_those_it_trains_on(host, tmp_path):
    code, calls, errors = run(f"{host}/run_rwml_pipeline_tiny.sh", tmp_path)
    assert code == 0, errors
    held_out, training = [call for call in steps(calls) if call[:2] == ["data", "filter"]]
    assert held_out[5:] == training[5:]  # after the files
    played = [call for call in steps(calls) if call[:2] == ["env", "rollout"]]
    assert [(value(call, "--out"), "--held-out" in call) for call in played] == [
        (held_out[2], True),
        (training[2], False),
    ]
    assert steps(calls)[-1][2] == value(held_out, "--out")


@pytest.mark.parametrize("host", HOSTS)
def test_the_tiny_pipeline_on_rollouts_of_the_users_own_holds_out_some_of_them(host, tmp_path):
    code, calls, errors = run(f"{host}/run_rwml_pipeline_tiny.sh", tmp_path, TRAJECTORIES="mine.jsonl")
    assert code == 0, errors
    names = [" ".join(call[:2]) for call in steps(calls)]
    assert names == ["data filter", "data expand", "data build", "data easy", "data build", "data build"]
    assert steps(calls)[-1][2] == steps(calls)[2][2] == "runs/rwml_pipeline_tiny/transitions.validation.jsonl"


def pretrained(host, folder, *flags):
    """The calls of the pretrained model's script, where the warm start is there; and the folder of its results."""
    work = "runs/sql_135m_quick" if "--quick" in flags else "runs/sql_135m"
    cloned = folder / work / host / "cloned"
    if host == "verl":  # where it wrote a model is seen on the disk
        cloned = cloned / "global_step_40" / "huggingface"
    cloned.mkdir(parents=True)
    (cloned / "config.json").write_text("{}")
    calls = calls_of(RECIPES / host / "run_echo_sql_135m.sh", folder, *flags)
    return work, str(cloned.relative_to(folder)), calls


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["hour", "quick"])
def test_the_pretrained_recipe_trains_both_arms_alike_and_measures_every_model(host, quick, tmp_path):
    work, cloned, calls = pretrained(host, tmp_path, *quick, "--x", "a b")
    trainers = {"trl": "wm_plugin.trl.train", "verl": "verl.trainer.main_ppo"}
    without, with_term = [call for call in calls if trainers[host] in call]
    assert without[-2:] == with_term[-2:] == ["--x", "a b"]
    if host == "trl":
        assert (value(without, "--echo_coeff"), "--echo_coeff" in with_term) == ("0", False)
        assert value(without, "--bf16") == value(with_term, "--bf16") in ("true", "false")
        assert value(without, "--model_name_or_path") == value(with_term, "--model_name_or_path") == cloned
        written = [value(call, "--output_dir") for call in (without, with_term)]
        same = [[word for word in call if word not in ("--echo_coeff", "0", *written)] for call in (without, with_term)]
    else:
        assert ("wm.coeff=0" in without, "wm.coeff=0" in with_term) == (True, False)
        assert f"actor_rollout_ref.model.path={cloned}" in without
        written = [f"{work}/verl/{name}" for name in ("grpo", "echo")]
        same = [
            [word for word in call if word != "wm.coeff=0" and not word.startswith("trainer.default_local_dir")]
            for call in (without, with_term)
        ]
        for path, call in zip(written, (without, with_term), strict=True):
            assert f"trainer.default_local_dir={path}" in call
    assert written == [f"{work}/{host}/{name}" for name in ("grpo", "echo")]
    assert same[0] == same[1]
    *measured, table = [call for call in calls if "wm_plugin.lab.tiny.figures" in call]
    assert [value(call, "--name") for call in measured] == ["start", "cloned", "grpo", "echo"]
    models = [value(call, "--model") for call in measured]
    assert models[:2] == ["runs/smollm2_135m", cloned]
    assert ["--played" in call for call in measured] == [False, True, True, True]
    if host == "trl":  # on verl a model's folder is seen on the disk, where these programs write nothing
        assert models[2:] == written
        played = [call for call in steps(calls) if call[:3] == ["env", "rollout", "sql"] and "--held-out" in call]
        own = {value(call, "--policy"): value(call, "--out") for call in played}
        assert [own[model] for model in models[1:]] == [value(call, "--played") for call in measured[1:]]
        assert [own[name] for name in ("expert", "random")] == measured[0][measured[0].index("--episodes") + 1 :]
    assert value(table, "--table") == value(measured[0], "--out") == f"{work}/{host}/figures.jsonl"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["hour", "quick"])
def test_the_pretrained_models_warm_start_clones_an_expert(host, quick, tmp_path):
    work = "runs/sql_135m_quick" if quick else "runs/sql_135m"
    model, *_, last = calls = calls_of(RECIPES / host / "run_clone_sql_135m.sh", tmp_path, *quick, "--x", "a b")
    assert model == ["python", "-m", "wm_plugin.lab.tiny.pretrained", "--out", "runs/smollm2_135m"]
    played, built = steps(calls)
    assert (played[:3], value(played, "--policy")) == (["env", "rollout", "sql"], "expert")
    assert "--held-out" not in played
    assert (built[2], value(built, "--as"), value(built, "--host")) == (value(played, "--out"), "imitation", host)
    assert value(built, "--tokenizer") == "runs/smollm2_135m"
    assert last[-2:] == ["--x", "a b"]
    if host == "trl":
        config = yaml.safe_load((tmp_path / value(last, "--config")).read_text())
        assert value(last, "--bf16") in ("true", "false")  # what this machine's CPU has
        assert config["datasets"][0]["data_files"] == value(built, "--out")
        assert (config["output_dir"], config["max_steps"]) == (f"{work}/trl/cloned", 10 if quick else 20)
    else:
        config = yaml.safe_load((RECIPES / "verl" / "clone_sql_135m.yaml").read_text())
        words = dict(word.split("=", 1) for word in last if "=" in word and not word.startswith("-"))
        rows = words.get("data.train_files", config["data"]["train_files"])
        folder = words.get("trainer.default_local_dir", config["trainer"]["default_local_dir"])
        assert (rows, folder) == (value(built, "--out"), f"{work}/verl/cloned")


def test_the_pretrained_recipe_goes_on_where_it_was(tmp_path):
    (tmp_path / "runs/sql_135m/trl/grpo").mkdir(parents=True)
    (tmp_path / "runs/sql_135m/trl/grpo/training_args.bin").write_text("")
    lines = ['{"name": "start"}', '{"name": "cloned"}']
    (tmp_path / "runs/sql_135m/trl/figures.jsonl").write_text("\n".join(lines) + "\n")
    _, _, calls = pretrained("trl", tmp_path)
    names = [value(call, "--name") for call in calls if "wm_plugin.lab.tiny.figures" in call and "--name" in call]
    assert names == ["grpo", "echo"]
    assert sum("wm_plugin.trl.train" in call for call in calls) == 1
    assert not [call for call in calls if call[0] == "trl"]


@pytest.mark.parametrize("host", HOSTS)
def test_the_table_of_worlds_is_made_in_order(tmp_path, host):
    """What is made from nothing, up to the server, beside which the script runs once more."""
    work = tmp_path / "mine"
    work.mkdir()
    for name in ("train", "held_out"):  # what programs that only note their calls do not write
        (work / f"{name}.both.jsonl").write_text("")
    script = RECIPES / host / "run_sim_table_tiny.sh"
    arguments = ("--seeds", "2", "--out", str(work), "--x", "a b")
    calls = [call[2:] for call in calls_of(script, tmp_path, *arguments, WM_TINY_SERVER="")]
    modules = [call[0].removeprefix("wm_plugin.") for call in calls]
    data = ["lab.tiny.rollouts", "cli.main", "cli.main"]
    assert modules == ["lab.tiny", *data, *data, "lab.tiny.world_model", "lab.tiny.sim_table", "lab.tiny.serve"]
    assert [call[1:3] for call in calls if call[0] == "wm_plugin.cli.main"] == [
        ["lab", "control"],
        ["data", "build"],
    ] * 2
    last = calls[-1]
    assert last[last.index("bash") + 2 :] == [host, *arguments]
    assert value(calls[-2], "--name") == "start"


@pytest.mark.parametrize("host", HOSTS)
def test_the_arms_differ_in_their_worlds_alone(tmp_path, host):
    work, script = tmp_path / "mine", RECIPES / host / "run_sim_table_tiny.sh"
    (work / "world").mkdir(parents=True)
    (work / "world" / "config.json").write_text("{}")
    arguments = ("--seeds", "2", "--steps", "3", "--out", str(work), "--x", "a b")
    calls = [call[2:] for call in calls_of(script, tmp_path, *arguments, WM_TINY_SERVER="http://127.0.0.1:1/v1")]
    trainer = {"trl": "wm_plugin.trl.train", "verl": "verl.trainer.main_ppo"}[host]
    arms = [" ".join(call) for call in calls if call[0] == trainer]
    measured = [
        value(call, "--name") for call in calls if call[0] == "wm_plugin.lab.tiny.sim_table" and "--name" in call
    ]
    assert measured == [f"{arm}_s{seed}" for arm in ("real", "sim", "controlled", "mixed") for seed in (0, 1)]
    assert len(arms) == 8
    assert ["127.0.0.1:1" in arm for arm in arms] == [False] * 2 + [True] * 6
    assert ["control" in arm.replace("controlled", "") for arm in arms] == [False] * 4 + [True] * 2 + [False] * 2
    assert ['"worlds": ["sim"]' in arm or 'worlds: ["sim"]' in arm for arm in arms] == [False] * 6 + [True] * 2
    assert all(arm.endswith("--x a b") for arm in arms)
    assert calls[-1][:3] == ["wm_plugin.lab.tiny.sim_table", "--table", str(work / "evaluations")]


def test_the_table_of_worlds_takes_whole_numbers(tmp_path):
    done = subprocess.run(
        [RECIPES / "trl" / "run_sim_table_tiny.sh", "--seeds", "many"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--seeds and --steps are whole numbers >= 1, not many" in done.stderr


@pytest.mark.parametrize("world", ["textworld", "scienceworld"])
@pytest.mark.parametrize("size", ["tiny", "135m"])
def test_consistency_is_measured_alike_before_and_after_training(world, size, tmp_path):
    calls = calls_of(RECIPES / "trl" / "run_consistency_tiny.sh", tmp_path, world, size, "--x", "a b")
    work = f"runs/consistency_tiny/{world}/{size}"
    expert, wanderer, *built, before, after = steps(calls)
    for call, policy in ((expert, "expert"), (wanderer, "random")):
        assert call[:3] == ["env", "rollout", world]
        assert (value(call, "--policy"), value(call, "--count"), value(call, "--seed")) == (policy, "60", "0")
        assert ("--split" in call) is (world == "scienceworld")  # training rows are the default elsewhere
        assert "--held-out" not in call
    rows = built[-1]
    assert (rows[2], value(rows, "--as")) == (f"runs/consistency_tiny/{world}/rollouts.jsonl", "word2world")
    assert value(rows, "--tokenizer") == f"{work}/start"
    made = next(call for call in calls if call[:2] == ["python", "-m"] and call[2].startswith("wm_plugin.lab.tiny"))
    if size == "tiny":
        assert value(made, "--words") == value(built[0], "--out")
        assert value(made, "--out") == f"{work}/start"
    else:
        assert made == ["python", "-m", "wm_plugin.lab.tiny.pretrained", "--out", "runs/smollm2_135m"]
        assert (tmp_path / work / "start").is_symlink()
    (trained,) = [call for call in calls if call[0] == "trl"]
    assert trained[-2:] == ["--x", "a b"]
    config = yaml.safe_load((tmp_path / value(trained, "--config")).read_text())
    assert config["datasets"][0]["data_files"] == value(rows, "--out") == f"{work}/rows.parquet"
    assert (config["model_name_or_path"], config["output_dir"]) == (f"{work}/start", f"{work}/trained")
    assert [value(call, "--model") for call in (before, after)] == [f"{work}/start", f"{work}/trained"]
    assert [value(call, "--out") for call in (before, after)] == [f"{work}/before", f"{work}/after"]
    same = [[w for w in call if w not in (value(call, "--out"), value(call, "--model"))] for call in (before, after)]
    assert same[0] == same[1]
    assert [word for word, flag in zip(before[1:], before, strict=False) if flag == "--agent"] == ["expert", "random"]
    assert "--split" not in before  # seen and unseen
    # what is trained on shows the hidden state where the evaluation does
    assert (
        ("--no-world-context" in rows)
        is ("--no-world-context" in before)
        is ((world, size) == ("scienceworld", "135m"))
    )
    assert [call[0] for call in calls[-2:]] == ["trl", "python"]  # the model before is measured before there is another


def test_a_seed_has_a_folder_of_its_own_and_quick_does_less(tmp_path):
    script = RECIPES / "trl" / "run_consistency_tiny.sh"
    calls = calls_of(script, tmp_path, "--quick", SEED="3")
    work = "runs/consistency_tiny_quick/seed3/textworld"
    assert {value(call, "--seed") for call in calls if "--seed" in call} == {"3"}
    expert, *_ = steps(calls)
    assert (value(expert, "--out"), value(expert, "--count")) == (f"{work}/expert.jsonl", "3")
    (trained,) = [call for call in calls if call[0] == "trl"]
    assert trained[trained.index("--max_steps") + 1 :].count("--max_steps") == 0
    assert value(trained, "--max_steps") == "2"


def test_consistency_that_could_not_be_measured_ends_the_script(tmp_path):
    code, calls, _ = run("trl/run_consistency_tiny.sh", tmp_path, failing="eval consistency")
    assert code != 0
    assert not [call for call in calls if call[0] == "trl"]


def test_a_careless_shopper_is_checked_with_every_budget(tmp_path):
    calls = calls_of(RECIPES / "trl" / "run_verify_shop_tiny.sh", tmp_path, "--x", "a b")
    work = "runs/verify_shop_tiny"
    expert, wanderer, _, built = steps(calls)
    assert [value(call, "--policy") for call in (expert, wanderer)] == ["expert", "random"]
    (careless,) = [call for call in calls if call[2] == "wm_plugin.lab.tiny.rollouts"]
    assert (value(careless, "--environment"), value(careless, "--out")) == ("shop", f"{work}/careless.jsonl")
    assert not any("--held-out" in call for call in (expert, wanderer, careless))
    (trained,) = [call for call in calls if call[0] == "trl"]
    config = yaml.safe_load((tmp_path / value(trained, "--config")).read_text())
    assert config["datasets"][0]["data_files"] == value(built, "--out") == f"{work}/rows.parquet"
    assert (config["model_name_or_path"], config["output_dir"]) == (value(built, "--tokenizer"), f"{work}/trained")
    assert trained[-2:] == ["--x", "a b"]
    *played, table = [call for call in calls if call[2] == "wm_plugin.lab.tiny.verify_table"]
    by_model = [call for call in played if "--model" in call]
    assert [value(call, "--budget") for call in by_model] == ["0", "2", "4", "10", "50"]  # the paper's
    assert {value(call, "--model") for call in by_model} == {f"{work}/trained"}
    assert len({(value(call, "--count"), value(call, "--seed")) for call in played}) == 1  # the same tasks
    controls = [(value(call, "--control"), value(call, "--budget")) for call in played if "--control" in call]
    assert controls == [(name, n) for n in ("2", "4", "10", "50") for name in ("refuse", "coin", "oracle")]
    names = [("model", value(call, "--budget")) for call in by_model] + controls
    assert {value(call, "--out") for call in played} == {f"{work}/episodes/{name}_{n}.jsonl" for name, n in names}
    assert value(table, "--table") == f"{work}/episodes"


def test_another_world_model_checks_without_a_training(tmp_path):
    script = RECIPES / "trl" / "run_verify_shop_tiny.sh"
    calls = calls_of(script, tmp_path, "--quick", SEED="3", WORLD_MODEL="name", WORLD_MODEL_URL="http://h/v1")
    assert {call[2] for call in calls} == {"wm_plugin.lab.tiny.verify_table"}
    by_model = [call for call in calls if "--model" in call]
    assert {(value(call, "--model"), value(call, "--url"), value(call, "--seed")) for call in by_model} == {
        ("name", "http://h/v1", "3")
    }
    assert value(calls[-1], "--out") == "runs/verify_shop_tiny_quick/seed3/table.json"
