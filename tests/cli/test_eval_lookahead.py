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
from support.world_models import RealWorld
from wm_plugin.cli import main
from wm_plugin.data.readers import read
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")  # makes the schemas of tools

from wm_plugin.lab.tiny.policy import make_tokenizer

pytestmark = pytest.mark.host

GRID = load("grid")
ROWS = GRID.rows(6, 0)
TOKENIZER = make_tokenizer()


def wm(capsys, *arguments):
    code = main.main(["eval", "lookahead", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def after(board, move):
    """The board after a move, without the limit of turns."""
    environment = GridEnvironment()
    if board[-1] == "!":
        return board
    environment.reset(board[:-1])
    return environment.move(move)


def wanders(body):
    """A policy that moves anywhere, and knows what follows."""
    if "prompt" in body:
        *_, board, turn = TOKENIZER.decode(body["prompt"]).split(":")
        return after(board[-20:], turn[0])
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


def flags(server, out=None, limit=6):
    folder = ("--out", out) if out else ()
    few = ("--continuations", 12, "--depth", 6, "--limit", limit)
    return ("grid", "--server", server.base_url, "--server-model", "wanderer", *few, *folder)


def measures(result):
    return {(one["name"], one["by"], one["group"]): one for one in result["measures"]}


def test_a_policy_that_is_its_own_world_model_behind_a_server(capsys, tmp_path, tokenizer):
    with served() as server:
        arguments = (*flags(server, tmp_path / "x"), "--tokenizer", tokenizer, "--observation-tokens", 20, "--oracle")
        code, out, err = wm(capsys, *arguments, "--json")
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
        asked, of = len(server.bodies), measures(result)
        plain, majority, coin, ahead, oracle = (
            of["success", "arm", arm]["value"] for arm in ("plain", "majority", "coin", "look-ahead", "oracle")
        )
        assert ahead >= max(plain, majority, coin) + 0.3
        assert of["success_difference", "look-ahead against", "coin"]["value"] == pytest.approx(ahead - coin)
        assert abs(ahead - oracle) < 0.2
        # it knows all but the limit of turns, at which a board ends in ! without a success
        assert 0.85 < of["next_observation", "imagined by", "look-ahead"]["value"] <= 1.0
        assert of["next_observation", "imagined by", "oracle"]["value"] == 1.0
        assert of["success_difference", "against plain", "look-ahead"]["value"] == pytest.approx(ahead - plain)
        # 3 tokens an answer: as many samples as answers of look-ahead a decision
        answers = (
            of["tokens", "arm", "look-ahead"]["value"]
            * 6
            / 3
            / sum(1 for line in (tmp_path / "x" / "decisions-look-ahead.jsonl").open())
        )
        assert of["samples", "arm", "majority"]["value"] == pytest.approx(answers, abs=0.51)
        assert "tokens generated a decision: plain 3.0" in result["notes"][-1]
        prompts = [body for body in server.bodies if "prompt" in body]
        assert {body["max_tokens"] for body in prompts} == {20}
        assert all("stop" not in body for body in prompts)
        files = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
        assert set(files) == {
            "evaluation.json", "settings.json", "episodes.jsonl", "rows.jsonl", "result.json",
            *(f"decisions-{arm}.jsonl" for arm in ("plain", "majority", "coin", "look-ahead", "oracle")),
        }  # fmt: skip
        assert len(list(read(tmp_path / "x" / "episodes.jsonl"))) == 30

        code, out, _ = wm(capsys, *arguments, "--json")
        assert json.loads(out.splitlines()[-1]) == {**result, "asked": 0}
        assert len(server.bodies) == asked
        assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == files
        code, out, _ = wm(capsys, *arguments)
    assert (code, "imagined by" in out) == (0, True)


def test_another_model_as_the_world_model(capsys, tmp_path):
    with served() as server:
        world = ("--world-server", server.base_url, "--world-server-model", "world")
        code, out, err = wm(capsys, *flags(server, tmp_path / "x"), *world, "--arms", "plain,look-ahead", "--json")
        assert code == 0, err
        result = json.loads(out.splitlines()[-1])
    assert "the world model's tokens are not counted" in result["notes"][0]
    of = measures(result)
    assert of["success", "arm", "look-ahead"]["value"] >= of["success", "arm", "plain"]["value"] + 0.3
    assert of["next_observation", "imagined by", "look-ahead"]["value"] > 0.85


def test_a_world_model_that_promises_too_much_is_seen(capsys):
    with served(lambda text, turn, row: text.replace("G", "P").removesuffix(" [SUCCESS]") + " [SUCCESS]") as server:
        world = ("--world-server", server.base_url, "--world-server-model", "world")
        _, out, _ = wm(capsys, *flags(server, None, 4), *world, "--arms", "plain,look-ahead", "--json")
    of = measures(json.loads(out.splitlines()[-1]))
    imagined, came, optimism = (
        of[name, "imagined by", "look-ahead"]["value"] for name in ("imagined", "came", "optimism")
    )
    assert imagined == 1.0
    assert optimism == pytest.approx(1.0 - came)
    assert optimism > 0.2
    assert of["brier", "imagined by", "look-ahead"]["value"] == pytest.approx(1.0 - came)
    assert of["came", "forecast", "look-ahead, 0.8 to 1.0 imagined"]["value"] == came


def test_failures_are_counted_and_asked_again(capsys, tmp_path, tokenizer):
    lost = {"on": True}
    with served(faults=lambda number: "400" if lost["on"] and number % 5 == 4 else None) as server:
        arguments = (*flags(server, tmp_path / "x", 3), "--tokenizer", tokenizer, "--observation-tokens", 20, "--json")
        result = json.loads(wm(capsys, *arguments)[1].splitlines()[-1])
        assert result["failures"]["imagined episodes"] > 0
        lost["on"] = False
        result = json.loads(wm(capsys, *arguments)[1].splitlines()[-1])
    assert not [reason for reason in result["failures"] if reason.startswith("plain")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "NAME requires an argument"),
        (("grid",), "name one model: --model or --server"),
        (("grid", "--server", "URL"), "--server URL and --server-model NAME go together"),
        (("grid", "--server", "URL", "--server-model", "m"), "give --tokenizer"),
        (("gird", "--model", "."), "did you mean 'grid'"),
        (("grid", "--model", ".", "--arms", "plain,majorty"), "there is no arm 'majorty'; did you mean 'majority'"),
        (("grid", "--model", ".", "--arms", "oracle"), "there is no arm 'oracle'; --oracle adds it"),
        (("grid", "--model", ".", "--arms", "plain"), "--arms names no arm that looks ahead"),
        (("grid", "--model", ".", "--depth", "0"), "depth is 0; write a whole number >= 1"),
        (("grid", "--model", ".", "--value", "joy"), "--value is joy; there is 'length', 'reward', 'success'"),
        (("grid", "--model", ".", "--tokenizer", "x"), "--tokenizer is for a policy behind a server"),
        (("grid", "--model", ".", "--world-model", "x", "--world-server", "y"), "not --world-model and --world-server"),
        (("grid", "--model", ".", "--world-server", "y"), "--world-server-model NAME go together"),
        (("grid", "--model", ".", "--limit", "0"), "--limit is 0"),
        (
            ("grid", "--model", ".", "--value", "reward"),
            "--value is reward, and nothing says where a reward stands; give the text",
        ),
        (("grid", "--model", ".", "--value", "reward"), "before it (--reward-text)"),
        (("sql", "--model", "."), "give its text (--won-text)"),
        (("grid", "--model", ".", "--chat-template", "no.jinja"), "--chat-template: 'no.jinja' cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(capsys, tmp_path, arguments, message):
    arguments = ["http://localhost:1/v1" if one == "URL" else one for one in arguments]
    code, out, err = wm(capsys, *arguments, "--out", tmp_path / "x")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not (tmp_path / "x").exists()


def test_a_world_that_says_no_success_asks_for_its_text(capsys, tokenizer):
    with served() as server:
        server_flags = ("--server", server.base_url, "--server-model", "m", "--tokenizer", tokenizer)
        code, _, err = wm(capsys, "sql", *server_flags)
    assert (code, err.count("\n")) == (2, 1)
    assert "--won-text" in err or "marks.won" in err


def test_a_server_without_raw_prompts_is_one_line(capsys, tokenizer):
    with served() as server:
        first = server.reply

        def chat_alone(body):
            if "prompt" in body:
                raise KeyError("messages")
            return first(body)

        server.reply = chat_alone
        server.faults = lambda number: "404" if "prompt" in server.bodies[number] else None
        arguments = (*flags(server, None, 1), "--tokenizer", tokenizer, "--arms", "look-ahead")
        code, _, err = wm(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert "name a world model instead (--world-model, --world-server)" in err


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path, capsys, tokenizer):
    """kill -9 at several moments: the same table as without, and no decision twice."""
    more = (
        "--tokenizer",
        tokenizer,
        "--observation-tokens",
        20,
        "--concurrency",
        8,
        "--arms",
        "plain,look-ahead",
        "--json",
    )
    with served() as server:
        whole = json.loads(wm(capsys, *flags(server, tmp_path / "whole", 3), *more)[1].splitlines()[-1])
    with served(latency=0.01) as server:
        command = [sys.executable, "-m", "wm_plugin", "eval", "lookahead"]
        command += map(str, (*flags(server, tmp_path / "x", 3), *more))
        for questions in (60, 200):
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while len(server.bodies) < questions:
                assert running.poll() is None
                time.sleep(0.005)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        kept = sum(1 for path in (tmp_path / "x").glob("decisions-*") for line in path.open() if line.endswith("\n"))
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert result["measures"] == whole["measures"]
    assert result["asked"] == whole["asked"] - kept
