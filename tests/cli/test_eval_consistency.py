"""`wm eval consistency` from a world to a table, with a world model and an agent behind a real server."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from support.openai_server import OpenAIServer
from support.world_models import RealWorld
from wm_plugin.data.readers import read
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.grid import expert as grid_expert
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")  # makes the schemas of tools

pytestmark = pytest.mark.host

GRID = load("grid")
ROWS = [row for held_out in (False, True) for row in GRID.rows(3, 0, held_out)]


def walk(body):
    """An agent that takes a shortest way from the last board that it sees."""
    board = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")][-1]
    if board.endswith("!"):
        return "I am there."
    environment = GridEnvironment()
    environment.reset(board.rstrip(">"))
    name, arguments = grid_expert()(environment)
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def served(lie=lambda text, turn, row: text, **options):
    """A server with the agent `walker` and the world model `world`."""
    model = RealWorld(GRID, ROWS, lie)
    return OpenAIServer(
        lambda body: walk(body) if body["model"] == "walker" else model.answer(body["messages"]).text, **options
    )


def command(server, out=None, limit=3):
    agent = ("--agent", server.base_url, "--agent-model", "walker")
    folder = ("--out", out) if out else ()
    asked = ("--server", server.base_url, "--server-model", "world", "--limit", limit)
    return ("eval", "consistency", "grid", *agent, *asked, *folder)


def measures(result):
    return {(one["name"], one["by"], one["group"]): one for one in result["measures"]}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_table_from_a_world_to_a_folder_and_again_without_a_question(wm, tmp_path):
    with served(lambda text, turn, row: text.removesuffix(" [SUCCESS]")) as server:
        arguments = (*command(server, tmp_path / "x"), "--agent", "expert")
        result = wm.json(*arguments)
        asked, of = len(server.bodies), measures(result)
        assert result["asked"] > 0 < result["ok"]
        for agent in ("walker", "expert"):
            values = [of[name, "agent", agent]["value"] for name in ("real", "wm", "w2r", "cr", "together")]
            assert values == [1.0, 0.0, 1.0, 1.0, 0.0]
        assert of["cr", "split", "unseen"]["count"] == 6
        assert {body["temperature"] for body in server.bodies if body["model"] == "world"} == {0.0}
        assert "expert looks into its environment" in result["notes"][0]
        kept = files(tmp_path / "x")
        assert kept.keys() == {
            "evaluation.json", "settings.json", "answers.jsonl", "actions.jsonl", "rows.jsonl", "w2r.jsonl", "result.json",
        }  # fmt: skip
        assert len(list(read(tmp_path / "x" / "w2r.jsonl"))) == 12
        assert wm.json(*arguments) == {**result, "asked": 0}
        assert files(tmp_path / "x") == kept
        assert re.search(r"\nexpert, unseen +100%", wm.text(*arguments))
        assert len(server.bodies) == asked


def test_failures_of_the_server_are_counted_and_asked_again(wm, tmp_path):
    lost = {"on": True}

    def fault(number):
        return "400" if lost["on"] and server.bodies[number]["model"] == "world" and number % 2 else None

    with served(faults=fault) as server:
        result = wm.json(*command(server, tmp_path / "x"))
        won = measures(result)["wm", "", ""]
        assert result["failures"] == {"wm: refused": won["failed"]}
        assert 0 < won["failed"] <= 6
        assert won["with_failed"] == (6 - won["failed"]) / 6
        lost["on"] = False
        result = wm.json(*command(server, tmp_path / "x"))
    assert not result["failures"]
    assert measures(result)["cr", "", ""]["value"] == 1.0


def test_anchoring_and_one_split(wm, tmp_path):
    with served(lambda text, turn, row: "nonsense") as server:
        result = wm.json(*command(server), "--split", "unseen", "--anchor-tools", "move")
        assert {body["model"] for body in server.bodies} == {"walker"}
    assert measures(result)["cr", "split", "unseen"]["value"] == 1.0
    assert ("cr", "split", "seen") not in measures(result)
    assert (result["out"], list(tmp_path.iterdir())) == (None, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "NAME requires an argument"),
        ("grid --agent expert", "name one model: --model or --server"),
        ("gird --agent expert", "did you mean 'grid'"),
        ("grid --agent expret", "--agent 'expret' is no folder with a model, and no URL; did you mean 'expert'"),
        ("grid --agent http://localhost:1/v1", "--agent has 1 URLs and --agent-model 0 names"),
        ("grid --agent expert --agent expert", "two agents have the name 'expert'"),
        ("grid --agent expert --split train", "--split: grid has no split 'train'"),
        ("grid --agent expert --anchor-turns -1", "--anchor-turns is -1; write a number >= 0"),
        ("grid --agent expert --anchor-tools mve", "--anchor-tools: grid has no tool 'mve'"),
        ("grid --agent expert --prompts rwml", "--prompts: rwml has no success mark"),
        ("grid --agent expert --level hard", "--level: grid has no level 'hard'"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(wm, tmp_path, arguments, message):
    server = ("--server", "http://localhost:1/v1", "--server-model", "m") if message[:4] != "name" else ()
    assert message in wm.error("eval", "consistency", *arguments.split(), *server, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_of_something_else_or_of_other_settings_is_refused(wm, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with served() as server:
        assert "holds files, but no evaluation.json of wm eval" in wm.error(*command(server, tmp_path / "mine", 1))
        assert os.listdir(tmp_path / "mine") == ["notes.txt"]
        wm.text(*command(server, tmp_path / "x", 1))
        assert "max_turns 50 -> 7" in wm.error(*command(server, tmp_path / "x", 1), "--max-turns", 7)


@pytest.mark.slow
def test_a_killed_run_goes_on(wm, tmp_path):
    """kill -9 at several moments: the same table as without, and no question twice."""
    with served(latency=0.02) as server:
        whole, asked = wm.json(*command(server, tmp_path / "whole"), "--concurrency", 2), len(server.bodies)
    with served(latency=0.02) as server:
        words = [sys.executable, "-m", "wm_plugin", *map(str, command(server, tmp_path / "x"))]
        words += ["--concurrency", "2", "--json"]
        for lines in (3, 9):
            running = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            while len(server.bodies) < lines:
                assert running.poll() is None
                time.sleep(0.005)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        result = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        # what was on its way when the run was killed is asked again, and nothing else
        assert asked <= len(server.bodies) <= asked + 2 * 2
    assert result["measures"] == whole["measures"]


@pytest.mark.slow
def test_models_in_this_process(wm, tmp_path):
    from support.predictions import save_tiny

    folder = save_tiny(tmp_path / "model")
    arguments = ("eval", "consistency", "grid", "--agent", folder, "--model", folder, "--limit", 2)
    sizes = ("--max-new-tokens", 4, "--agent-max-new-tokens", 4, "--out", tmp_path / "x")
    first, second = wm.json(*arguments, *sizes, code=None), wm.json(*arguments, *sizes, code=None)
    assert second["asked"] == 0
    assert first["measures"] == second["measures"]
    assert first["failures"]  # outputs of four tokens are cut
