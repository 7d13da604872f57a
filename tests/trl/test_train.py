"""The training entry point: YAML and flags, one-line refusals, and every recipe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trl
import yaml
from packaging.version import Version

from wm_plugin.errors import UserError
from wm_plugin.trl import train

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
TINY = sorted(RECIPES.glob("echo_*_tiny.yaml"))
# an environment's own reward came with 1.8; before it get_reward was taken for a tool
GET_REWARD = pytest.mark.skipif(Version(trl.__version__) < Version("1.8"), reason="environments need trl >= 1.8")
FULL = sorted(path for path in RECIPES.glob("echo_*.yaml") if path not in TINY)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A random tiny policy on disk."""
    from wm_plugin.tiny.__main__ import main

    path = tmp_path_factory.mktemp("policy") / "tiny"
    main(["--out", str(path), "--random"])
    return path


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_the_file_and_alpha_is_an_alias(tmp_path):
    path = write(
        tmp_path,
        "echo_alpha: 0.05\nlearning_rate: 1e-6\necho_tools: {run_query: 0.3}\noutput_dir: x\nuse_cpu: true\nbf16: false",
    )
    script, config, _, _ = train.parse(["--config", path, "--echo_schedule", "step", "--echo_schedule_steps=5"])
    assert script.environment is None
    assert config.echo_coeff == 0.05
    assert config.learning_rate == 1e-6
    assert config.echo_config().tools == {"run_query": 0.3}
    assert config.echo_config().schedule_steps == 5
    _, config, _, _ = train.parse(["--config", path, "--echo_alpha", "0.5", "--echo_tools", "a,b"])
    assert config.echo_coeff == 0.5
    assert config.echo_config().tools == ("a", "b")
    _, config, _, _ = train.parse(["--config", path, "--echo_tools", '{"a": 0.1}'])
    assert config.echo_config().tools == {"a": 0.1}


@pytest.mark.parametrize(
    ("line", "flags", "echo"),
    [
        ("", [], None),
        ("echo_turn_information: true", [], 0.05),
        ("echo_turn_information: {echo: 0.2}", [], 0.2),
        ("echo_turn_information: {echo: 0.2}", ["--echo_turn_information", "false"], None),
        ("", ["--echo_turn_information", "true"], 0.05),
        ("", ["--echo_turn_information", '{"echo": 0.3}'], 0.3),
    ],
)
def test_turn_information_in_files_and_flags(tmp_path, line, flags, echo):
    path = write(tmp_path, f"output_dir: x\nuse_cpu: true\nbf16: false\n{line}")
    _, config, _, _ = train.parse(["--config", path, *flags])
    ratios = config.echo_config().turn_information
    assert (ratios and ratios["echo"]) == (echo or False)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("echo_coef: 1", [], "'echo_coef' in the config file is not a setting; did you mean 'echo_coeff'?"),
        ("echo_coeff: -1", [], "echo_coeff is -1; write a number >= 0"),
        ("echo_coeff: .nan", [], "echo_coeff is nan"),
        ("echo_schedule: linear", [], "echo_schedule 'linear' has no length; write schedule_steps"),
        ("echo_coeff: lots", [], "invalid float value: 'lots'"),
        ("- 1", [], "holds no mapping"),
        ("a: [", [], "is not YAML"),
        ("echo_coeff: 1", ["--echo_coefff", "2"], "--echo_coefff is not a flag; did you mean 'echo_coeff'?"),
        ("echo_tools: '{broken'", [], "echo_tools is not JSON"),
        ("echo_select: no.such.module:f", [], "there is no module 'no.such.module'"),
        ("echo_select: json:load_it", [], "json has no 'load_it'; did you mean 'load'?"),
        ("echo_guard: x", [], "guard is not part of this release"),
        ("rewards:\n- rogue", [], "rewards, entry 1: reward: there is no 'rogue'; did you mean 'rouge'?"),
        ("rewards:\n- path: rouge", [], "rewards, entry 1: reward rouge has no tag"),
        ("echo_coeff: 0", ["--rewards", "{path"], "rewards is not JSON"),
        (
            "echo_turn_information: {echoes: 1}",
            [],
            "echo_turn_information has no category 'echoes'; did you mean 'echo'?",
        ),
        ("echo_turn_information: ja", [], "echo_turn_information is 'ja'; write true, false, or ratios"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(tmp_path, capsys, text, arguments, message):
    text += "\nuse_cpu: true\nbf16: false\nmodel_name_or_path: unused" if ":" in text and "[" not in text else ""
    assert train.main(["--config", write(tmp_path, text), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_without_arguments_it_says_what_to_give(capsys):
    assert train.main([]) == 2
    assert "give --config X.yaml" in capsys.readouterr().err


def test_a_config_file_that_is_not_there(capsys):
    assert train.main(["--config", "missing.yaml"]) == 2
    assert "cannot read the config file missing.yaml" in capsys.readouterr().err
    assert train.main(["--config"]) == 2
    assert "needs a path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"echo_tools": ["mvoe"]}, "tools names 'mvoe'; did you mean 'move'?"),
        ({"temperature": 0.7}, "temperature is 0.7"),
        ({"environment": "gird"}, "environment: there is no 'gird'; did you mean 'grid'?"),
        ({"train_rows": "wm_plugin.environments.grid:dataset_row"}, "did you mean 'dataset_rows'?"),
        ({"train_rows_kwargs": {"size": 3}}, "train_rows_kwargs do not fit"),
        ({"train_rows": "wm_plugin.environments.sql:dataset_rows"}, "the dataset has no column 'board'"),
        ({"environment": None}, "No reward source|no environment tokens can occur"),
        ({"environment": None, "reward_funcs": ["builtins:len"]}, "no environment tokens can occur"),
        ({"model_name_or_path": "no/such/model"}, "no/such/model"),
        ({"gradient_accumulation_steps": 3, "steps_per_generation": 2}, "make one a multiple of the other"),
    ],
)
def test_what_does_not_fit_together_is_one_line_and_exit_2(tmp_path, policy, capsys, changes, message):
    import re

    values = yaml.safe_load((RECIPES / "echo_grpo_tiny.yaml").read_text())
    values.update({"model_name_or_path": str(policy), "output_dir": str(tmp_path), "max_steps": 1}, **changes)
    values["train_rows_kwargs"] = {"count": 16, "seed": 0} | changes.get("train_rows_kwargs", {})
    assert train.main(["--config", write(tmp_path, yaml.safe_dump(values))]) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("wm train: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert "Traceback" not in error


@GET_REWARD
def test_a_template_that_cannot_carry_tools(tmp_path, policy, capsys):
    import shutil

    copy = tmp_path / "policy"
    shutil.copytree(policy, copy)
    for path in (*copy.glob("*.jinja"), copy / "tokenizer_config.json"):
        if path.suffix == ".jinja":
            path.write_text("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    arguments = ["--config", str(RECIPES / "echo_grpo_tiny.yaml"), "--model_name_or_path", str(copy)]
    assert train.main(arguments) == 2
    assert "chat template does not support tool calling" in capsys.readouterr().err


@GET_REWARD
@pytest.mark.parametrize("path", TINY, ids=lambda path: path.stem)
def test_every_tiny_recipe_trains(path, policy, tmp_path, capsys):
    arguments = [
        "--config",
        str(path),
        "--model_name_or_path",
        str(policy),
        "--output_dir",
        str(tmp_path),
        "--max_steps",
        "2",
    ]
    assert train.main([*arguments, "--train_rows_kwargs", '{"count": 32}', "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["steps"] == 2
    assert result["last"][0]["echo/coeff"] == 1.0
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("path", FULL, ids=lambda path: path.stem)
def test_every_full_recipe_parses_and_names_what_exists(path):
    values = yaml.safe_load(path.read_text())
    arguments = ["--config", str(path), "--use_cpu", "true", "--bf16", "false", "--use_vllm", "false"]
    script, config, model, _ = train.parse(arguments)
    assert config.echo_coeff == 0.05
    assert model.model_name_or_path == "Qwen/Qwen2.5-7B-Instruct"
    assert train._environment(script.environment).__name__ == "SqlEnvironment"
    for split in ("train", "eval"):
        kwargs = {**values[f"{split}_rows_kwargs"], "count": 2}
        setattr(script, f"{split}_rows_kwargs", kwargs)
        assert len(train._rows(script, None, split)) == 2
    assert config.per_device_train_batch_size * 8 * config.gradient_accumulation_steps == 256


def test_every_recipe_has_a_launch_script():
    scripts = {path.name for path in RECIPES.glob("run_*.sh")}
    recipes = {path.stem for path in RECIPES.glob("*.yaml")} - {"accelerate_fsdp2", "rwml_tiny_prompts"}
    assert scripts == {f"run_{name}.sh" for name in recipes}
    for path in RECIPES.glob("run_*.sh"):
        assert os.access(path, os.X_OK)
        subprocess.run(["bash", "-n", str(path)], check=True)


@GET_REWARD
@pytest.mark.slow
def test_a_recipe_on_two_cpu_processes(policy, tmp_path):
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    (work / "runs" / "tiny").symlink_to(policy)
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PROCESSES": "2", "PATH": f"{bin_folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(RECIPES.parents[1])
    command = ["bash", str(RECIPES / "run_echo_grpo_tiny.sh"), "--max_steps", "2", "--json"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 2
    # two ranks of 64 completions, each with a prompt of 20 tokens
    assert result["last"][0]["num_tokens"] > 2 * 2 * 64 * 20


def test_an_error_names_its_field():
    with pytest.raises(UserError, match="environment is not JSON"):
        train._environment("{grid")
