"""`wm env new`: the package that it writes works, as it is, in every command that takes a world."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import new_world
from support.openai_server import OpenAIServer
from support.scripts import calls_of
from support.world_models import RealWorld
from wm_plugin.data import read
from wm_plugin.worlds.check import check
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.host
USES = ("training", "held-out evaluation", "verifier", "consistency")


@pytest.fixture
def name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return new_world(tmp_path, monkeypatch)


def test_it_writes_a_world_that_is_ready_for_everything(wm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = wm.text("env", "new", "deep_lake", "--out", "mine")
    assert text.splitlines()[-1].startswith("The world is deep_lake:DeepLake; its README.md has the commands")
    folder = tmp_path / "mine" / "deep_lake"
    assert sorted(os.listdir(folder)) == ["README.md", "__init__.py", "test_deep_lake.py"]
    assert not any(name in path.read_text() for path in folder.iterdir() for name in ("my_world", "MyWorld"))
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    report = check(load("deep_lake:DeepLake"), quick=True)
    assert {finding.state for finding in report.findings} == {"ok"}
    assert {use.name: use.add for use in report.uses} == dict.fromkeys(USES, ())
    assert report.expert_success == 1.0


@pytest.mark.slow
def test_its_tests_pass_in_its_folder_and_beside_it(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for folder, words in ((tmp_path / "my_world", ()), (tmp_path, ("my_world", "-k", "not rules"))):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_every_command_takes_it(wm, name, tmp_path):
    """Rollouts in the world, checked and simulated by a perfect world model, and the agreement of both."""
    rows = [row for held_out in (False, True) for row in load(name).rows(3, 0, held_out)]
    model = RealWorld(load(name), rows)
    rollout = ("env", "rollout", name, "--count", 3, "--out", "x.jsonl", "--policy")
    with OpenAIServer(lambda body: model.answer(body["messages"]).text) as server:
        asked = {"url": server.base_url, "model": "w"}
        (tmp_path / "sim.yaml").write_text(json.dumps(asked))
        (tmp_path / "verify.yaml").write_text(json.dumps({"budget": 9, "world_model": asked}))
        plain = wm.json(*rollout, "expert")
        assert (plain["success"], plain["effective_share"], plain["invalid_share"]) == (1.0, 1.0, 0.0)
        assert wm.json(*rollout, "random")["invalid_share"] == 0.0  # it has read "One of U, D, L, R."
        assert wm.json(*rollout, "expert", "--verify", "verify.yaml")["verify"]["checks"] > 0
        assert wm.json(*rollout, "random", "--simulation", "sim.yaml")["lost"] == 0
        simulated = list(read(tmp_path / "x.jsonl"))
        agent = ("--agent", "expert", "--server", server.base_url, "--server-model", "w", "--limit", 3)
        result = wm.json("eval", "consistency", name, *agent)
    assert all(turn.observations[0].text[-1] in ">!" for one in simulated for turn in one.turns)
    ratios = [one["value"] for one in result["measures"] if one["name"] == "cr"]
    assert ratios
    assert set(ratios) == {1.0}


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_its_readme_says_how_to_train_in_it(host, name, tmp_path):
    """The commands reach the trainer with the world, and verl with its rows."""
    text = (tmp_path / "my_world" / "README.md").read_text().replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith(f"bash $RECIPES/{host}/run.sh ")]
    calls = [" ".join(call) for call in calls_of(host, *shlex.split(line)[2:3], tmp_path, *shlex.split(line)[3:])]
    world, rows = {
        "trl": ("--environment my_world:MyWorld", "--train_rows my_world:dataset_rows"),
        "verl": ("+wm.environment=my_world:MyWorld", "train_rows=my_world:dataset_rows"),
    }[host]
    assert world in calls[-1]
    assert any(rows in call for call in calls)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("my-world", "is no module name; write small letters, digits and underscores, such as my_world"),
        ("MyWorld", "such as myworld"),
        ("../x", "'../x' is no module name"),
        ("7up", "'7up' is no module name; write small letters, digits and underscores\n"),
        ("none", "'none' is a Python keyword"),
        ("class", "'class' is a Python keyword"),
        ("sokoban", "sokoban is a world of this package (wm env list); write another name, such as my_sokoban"),
        ("json", "there is a module 'json' already"),
        ("wm_plugin", "there is a module 'wm_plugin' already"),
        ("there", "there is a module 'there' already (there.py)"),
        ("my_world", "the world's folder: my_world is not empty"),
        ("file", "the world's folder: file cannot be used"),
    ],
)
def test_a_bad_name_is_one_line_and_nothing_is_written(wm, name, tmp_path, written, message):
    (tmp_path / "there.py").touch()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "my_world" / "README.md").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert message in wm.error("env", "new", written)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "my_world" / "README.md").read_text() == (tmp_path / "file").read_text() == "mine"
