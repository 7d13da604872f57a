"""`wm eval lookahead` from a world to a folder, with a policy and world models behind a real server."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from support.openai_server import OpenAIServer
from support.world_models import RealWorld, board_after
from wm_plugin.data.readers import read
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")  # makes the schemas of tools

from wm_plugin.lab.tiny.policy import make_tokenizer

pytestmark = pytest.mark.host

GRID = load("grid")
ROWS = GRID.rows(6, 0)
TOKENIZER = make_tokenizer()


def wanders(body):
    """A policy that moves anywhere, and knows what follows."""
    if "prompt" in body:
        *_, board, turn = TOKENIZER.decode(body["prompt"]).split(":")
        return board_after(board[-20:], turn[0])
    move = random.Random(body["seed"]).choice("UDLR")
    return f'<tool_call>{{"name": "move", "arguments": {{"direction": "{move}"}}}}</tool_call>'


def served(lie=lambda text, turn, row: text, **options):
    model = RealWorld(GRID, ROWS, lie)
    return OpenAIServer(
        lambda body: model.answer(body["messages"]).text if body["model"] == "world" else wanders(body), **options
    )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(str(folder))
    return folder


def command(server, out=None, limit=6, *more):
    folder = ("--out", out) if out else ()
    few = ("--continuations", 12, "--depth", 6, "--limit", limit)
    served = ("--server", server.base_url, "--server-model", "wanderer")
    return ("eval", "lookahead", "grid", *served, *few, *folder, *more)


def measures(result):
    return {(one["name"], one["by"], one["group"]): one for one in result["measures"]}


def test_a_policy_that_is_its_own_world_model_behind_a_server(wm, tmp_path, tokenizer):
    with served() as server:
        own = ("--tokenizer", tokenizer, "--observation-tokens", 20, "--oracle")
        arguments = command(server, tmp_path / "x", 6, *own)
        result = wm.json(*arguments)
        asked, of = len(server.bodies), measures(result)
        arms = ("plain", "majority", "coin", "look-ahead", "oracle")
        plain, majority, coin, ahead, oracle = (of["success", "arm", arm]["value"] for arm in arms)
        assert ahead >= max(plain, majority, coin) + 0.3
        assert of["success_difference", "look-ahead against", "coin"]["value"] == pytest.approx(ahead - coin)
        assert abs(ahead - oracle) < 0.2
        # it knows all but the limit of turns, at which a board ends in ! without a success
        assert 0.85 < of["next_observation", "imagined by", "look-ahead"]["value"] <= 1.0
        assert of["next_observation", "imagined by", "oracle"]["value"] == 1.0
        assert of["success_difference", "against plain", "look-ahead"]["value"] == pytest.approx(ahead - plain)
        # 3 tokens an answer: as many samples as answers of look-ahead a decision
        decisions = len((tmp_path / "x" / "decisions-look-ahead.jsonl").read_text().splitlines())
        answers = of["tokens", "arm", "look-ahead"]["value"] * 6 / 3 / decisions
        assert of["samples", "arm", "majority"]["value"] == pytest.approx(answers, abs=0.51)
        assert "tokens generated a decision: plain 3.0" in result["notes"][-1]
        prompts = [body for body in server.bodies if "prompt" in body]
        assert {body["max_tokens"] for body in prompts} == {20}
        assert all("stop" not in body for body in prompts)
        files = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
        assert set(files) == {
            "evaluation.json", "settings.json", "episodes.jsonl", "rows.jsonl", "result.json",
            *(f"decisions-{arm}.jsonl" for arm in arms),
        }  # fmt: skip
        assert len(list(read(tmp_path / "x" / "episodes.jsonl"))) == 30
        assert wm.json(*arguments) == {**result, "asked": 0}
        assert len(server.bodies) == asked
        assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == files
        assert "imagined by" in wm.text(*arguments)


def test_another_model_as_the_world_model_and_one_that_promises_too_much(wm, tmp_path):
    def result(server, limit):
        world = ("--world-server", server.base_url, "--world-server-model", "world")
        return wm.json(*command(server, None, limit, *world, "--arms", "plain,look-ahead"))

    with served() as server:
        found = result(server, 6)
    assert "the world model's tokens are not counted" in found["notes"][0]
    of = measures(found)
    assert of["success", "arm", "look-ahead"]["value"] >= of["success", "arm", "plain"]["value"] + 0.3
    assert of["next_observation", "imagined by", "look-ahead"]["value"] > 0.85

    with served(lambda text, turn, row: text.replace("G", "P").removesuffix(" [SUCCESS]") + " [SUCCESS]") as server:
        of = measures(result(server, 4))
    names = ("imagined", "came", "optimism", "brier")
    imagined, came, optimism, brier = (of[name, "imagined by", "look-ahead"]["value"] for name in names)
    assert (imagined, optimism, brier) == pytest.approx((1.0, 1.0 - came, 1.0 - came))
    assert optimism > 0.2
    assert of["came", "forecast", "look-ahead, 0.8 to 1.0 imagined"]["value"] == came


def test_failures_are_counted_and_asked_again(wm, tmp_path, tokenizer):
    lost = {"on": True}
    with served(faults=lambda number: "400" if lost["on"] and number % 5 == 4 else None) as server:
        arguments = command(server, tmp_path / "x", 3, "--tokenizer", tokenizer, "--observation-tokens", 20)
        assert wm.json(*arguments)["failures"]["imagined episodes"] > 0
        lost["on"] = False
        result = wm.json(*arguments)
    assert not [reason for reason in result["failures"] if reason.startswith("plain")]


OWN = "grid --model ."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "NAME requires an argument"),
        ("grid", "name one model: --model or --server"),
        ("grid --server URL", "--server URL and --server-model NAME go together"),
        ("grid --server URL --server-model m", "give --tokenizer"),
        ("gird --model .", "did you mean 'grid'"),
        (f"{OWN} --arms plain,majorty", "there is no arm 'majorty'; did you mean 'majority'"),
        (f"{OWN} --arms oracle", "there is no arm 'oracle'; --oracle adds it"),
        (f"{OWN} --arms plain", "--arms names no arm that looks ahead"),
        (f"{OWN} --value joy", "--value is joy; there is 'length', 'reward', 'success'"),
        (f"{OWN} --tokenizer x", "--tokenizer is for a policy behind a server"),
        (f"{OWN} --world-model x --world-server y", "not --world-model and --world-server"),
        (f"{OWN} --world-server y", "--world-server-model NAME go together"),
        (f"{OWN} --world-server y --world-server-model m --context-file c", "--context-file: look-ahead knows no"),
        (
            f"{OWN} --value reward",
            "--value is reward, and nothing says where a reward stands; give the text before it (--reward-text)",
        ),
        ("sql --model .", "give its text (--won-text)"),
        (f"{OWN} --chat-template no.jinja", "--chat-template: 'no.jinja' cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(wm, tmp_path, arguments, message):
    words = arguments.replace("URL", "http://localhost:1/v1").split()
    assert message in wm.error("eval", "lookahead", *words, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_server_without_raw_prompts_is_one_line(wm, tokenizer):
    with served() as server:
        server.faults = lambda number: "404" if "prompt" in server.bodies[number] else None
        line = wm.error(*command(server, None, 1, "--tokenizer", tokenizer, "--arms", "look-ahead"))
    assert "name a world model instead (--world-model, --world-server)" in line


@pytest.mark.slow
def test_a_killed_run_goes_on(wm, tmp_path, tokenizer):
    """kill -9 at several moments: the same table as without, and no decision twice."""
    more = ("--tokenizer", tokenizer, "--observation-tokens", 20, "--concurrency", 8, "--arms", "plain,look-ahead")
    with served() as server:
        whole = wm.json(*command(server, tmp_path / "whole", 3, *more))
    with served(latency=0.01) as server:
        words = [sys.executable, "-m", "wm_plugin", *map(str, command(server, tmp_path / "x", 3, *more)), "--json"]
        for questions in (60, 200):
            running = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            while len(server.bodies) < questions:
                assert running.poll() is None
                time.sleep(0.005)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        kept = sum(1 for path in (tmp_path / "x").glob("decisions-*") for line in path.open() if line.endswith("\n"))
        result = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert result["measures"] == whole["measures"]
    assert result["asked"] == whole["asked"] - kept
