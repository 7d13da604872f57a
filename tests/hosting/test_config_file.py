"""Config files of `wm train`: which lies over which, and what is wrong with one, without a host."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from wm_plugin.errors import UserError
from wm_plugin.hosting import config_file

RECIPES = Path(__file__).parents[2] / "recipes" / "trl"
FILES = [
    ([], "nothing to train on; give --config X.yaml"),
    (["--config", "missing.yaml"], "cannot read the config file missing.yaml"),
    (["--config=missing.yaml"], "cannot read the config file missing.yaml"),
    (["missing.yaml"], "'missing.yaml' is no flag; write --config missing.yaml"),
    (["--config"], "--config needs a path to a YAML file"),
    (["--max_steps", "2", "--config", "--json"], "--config needs a path to a YAML file"),
    (["--config", "a.yaml", "--config", "missing.yaml"], "cannot read the config file a.yaml"),
]


@pytest.mark.parametrize(("arguments", "message"), FILES)
def test_a_config_file_that_is_not_there(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        config_file.split(arguments)


def test_files_lie_over_their_defaults_and_over_each_other(tmp_path):
    """The nearest one wins; mappings are merged, lists are not; our recipes are found from anywhere."""
    (tmp_path / "base.yaml").write_text(
        "defaults: [tiny]\nalpha: 0.5\ntools: [a, b]\nkwargs: {count: 2, deep: {a: 1, b: 2}}\n"
    )
    (tmp_path / "mine.yaml").write_text("defaults: base.yaml\ntools: [c]\nkwargs: {deep: {b: 3}}\nlearning_rate: 1.0\n")
    (tmp_path / "over.yaml").write_text("echo_coeff: 0.1\nkwargs: {deep: null}\n")
    found = config_file.read(str(tmp_path / "mine.yaml"))
    assert (found["echo_coeff"], found["tools"], found["learning_rate"]) == (0.5, ["c"], 1.0)
    assert found["kwargs"] == {"count": 2, "deep": {"a": 1, "b": 3}}
    assert (found["adam_beta2"], "defaults" in found) == (0.95, False)  # of the recipes' tiny.yaml
    both, others = config_file.split(
        [f"--config={tmp_path}/mine.yaml", "--config", f"{tmp_path}/over.yaml", "--seed", "3", "--flag=--config"]
    )
    assert (both["echo_coeff"], both["kwargs"]) == (0.1, {"count": 2, "deep": None})
    assert others == ["--seed", "3", "--flag=--config"]


def test_the_files_environment_variables_are_set(tmp_path, monkeypatch):
    monkeypatch.setenv("WM_OF_A_FILE", "before")
    (tmp_path / "mine.yaml").write_text("env: {WM_OF_A_FILE: 3}\nseed: 1\n")
    assert config_file.split(["--config", str(tmp_path / "mine.yaml")]) == ({"seed": 1}, [])
    assert os.environ["WM_OF_A_FILE"] == "3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: [tinny]", "defaults names 'tinny', and there is no .*tinny.yaml; did you mean 'tiny'"),
        ("defaults: [min]", "there is no .*min.yaml; did you mean 'mine'"),
        ("defaults: {a: 1}", "defaults is {'a': 1}; write a list of names"),
        ("defaults: [1]", r"defaults is \[1\]; write a list of names"),
        ("defaults: [mine]", r"mine.yaml is among its own defaults \(\S+mine.yaml -> \S+mine.yaml\)"),
        ("env: 3", "env is 3; write environment variables as NAME: value"),
        ("- a", "mine.yaml holds no mapping of settings"),
        ("a: [\nb: }", r"mine.yaml is not YAML: [^\n]+$"),
        ("a: 2026-02-31", "mine.yaml is not YAML: day is out of range"),
        ("alpha: 1\necho_coeff: 1", r"gives 'echo_coeff' twice \(as 'echo_coeff' too\); keep one"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, said):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        config_file.read(str(tmp_path / "mine.yaml"))


def test_defaults_are_beside_the_file_where_there_are_no_recipes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wm_plugin.recipes", None)  # as in a checkout on the PYTHONPATH
    monkeypatch.delitem(sys.modules, "wm_plugin.recipes.trl", raising=False)
    (tmp_path / "base.yaml").write_text("seed: 1")
    for name in ("base", "tiny"):
        (tmp_path / f"of_{name}.yaml").write_text(f"defaults: {name}")
    assert config_file.read(str(tmp_path / "of_base.yaml")) == {"seed": 1}
    with pytest.raises(UserError, match="defaults names 'tiny', and there is no .*tiny.yaml"):
        config_file.read(str(tmp_path / "of_tiny.yaml"))


def test_a_config_is_written_with_its_defaults(capsys):
    """For programs that read none, such as `trl sft`."""
    assert config_file.main([str(RECIPES / "echo_grpo_tiny.yaml"), "datasets=[{path: parquet}]", "name=é=1"]) == 0
    text = capsys.readouterr().out
    found = yaml.safe_load(text)
    assert (found["datasets"], found["environment"], found["use_cpu"]) == ([{"path": "parquet"}], "grid", True)
    assert text.endswith("\nname: é=1\n")
    with pytest.raises(UserError, match="write the config file, and NAME=VALUE"):
        config_file.main([])
