"""TRL's stock trainer, which knows nothing of this package, in a world behind `wm env serve`."""

import importlib
import json
import os
import subprocess
import sys

import pytest

import wm_plugin.worlds.agents.rollout as rollout
from support.served import TESTS, serving
from wm_plugin.data.schema import Action, Call
from wm_plugin.worlds.worlds import load

pytest.importorskip("openenv")
pytestmark = pytest.mark.slow

SEEDS = range(100, 108)


def test_it_trains_as_in_the_world_itself(policy, tmp_path):
    """The same log, to the last digit, and episodes that replay to the byte."""
    script = TESTS / "support" / "stock_openenv.py"
    start = [{"role": "user", "content": ""}]
    rows, out = tmp_path / "rows.json", tmp_path / "out.json"
    rows.write_text(json.dumps([{"prompt": start, "seed": seed} for seed in SEEDS]))
    environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    with serving("grid") as (_, url):
        command = [sys.executable, str(script), url, str(policy), str(rows), str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["ours"] == []
    world = load("grid")
    grid = world.make()
    for episode in found["episodes"]:
        actions = [Action(calls=(Call(name="move", arguments={"direction": move}),)) for move in episode["calls"]]
        played = rollout.replay(grid, world.rows(1, seed=episode["seed"])[0], actions)
        assert episode["seen"] == [one.text for turn in played.turns for one in turn.observations]
        assert episode["reward"] == played.reward
    assert len(found["episodes"]) == 32
    assert sum(len(episode["calls"]) for episode in found["episodes"]) > 60
    assert {episode["reward"] for episode in found["episodes"]} == {0.0, 1.0}

    class Grid(world.environment):
        def move(self, direction: str) -> str:
            if self.over:
                raise ValueError("Game over.")  # as the script's
            return super().move(direction)

    Grid.move.__doc__ = world.environment.move.__doc__
    stock = importlib.import_module("support.stock_openenv")
    boards = [world.rows(1, seed=seed)[0] for seed in SEEDS]
    local = stock.train(str(policy), boards, Grid, tmp_path / "local")
    assert json.loads(json.dumps(local)) == found["log"]
    assert [line["loss"] for line in found["log"][:2]] != [0.0, 0.0]
