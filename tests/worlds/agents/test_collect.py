"""Rollouts into files: the same whatever the processes, resumed after a kill, nothing lost silently."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.client.server import Server
from wm_plugin.data import read
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.synthesize import wandering
from wm_plugin.worlds.agents.collect import collect
from wm_plugin.worlds.agents.players import LocalPlayer, ScriptedPlayer, ServerPlayer
from wm_plugin.worlds.worlds import load

pytest.importorskip("transformers")

pytestmark = pytest.mark.host

GRID = load("grid")
ROWS = GRID.rows(24, seed=3)
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def own_worlds(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def experts(tmp_path, name="x", **options):
    player = ScriptedPlayer(GRID, "expert", **options)
    summary = collect(GRID, ROWS, player, tmp_path / f"{name}.jsonl", folder=tmp_path / name, shard_size=8)
    return summary, (tmp_path / f"{name}.jsonl").read_bytes()


@pytest.mark.slow
def test_the_file_is_the_same_with_more_processes_and_after_an_interruption(tmp_path):
    summary, alone = experts(tmp_path, "alone")
    assert summary.as_dict() | {"calls": None} == {
        "episodes": 24,
        "success": 1.0,
        "reward": 1.0,
        "effective_share": 1.0,
        "invalid_share": 0.0,
        "calls": None,
        "lost": 0,
        "failed": 0,
        "failed_by_reason": {},
        **dict.fromkeys(("turns", "actions"), summary.turns / 24),
    }
    assert summary.calls["move"] == summary.turns
    assert experts(tmp_path, "two", workers=2)[1] == alone
    played = list(read(tmp_path / "alone.jsonl"))
    assert [trajectory.source.row for trajectory in played] == list(range(24))
    assert {trajectory.metadata["policy"] for trajectory in played} == {"expert"}
    assert [trajectory.metadata["reset"] for trajectory in played] == ROWS
    (tmp_path / "alone.jsonl").unlink()
    (tmp_path / "alone" / "episodes-00001.jsonl").unlink()  # as if a kill had come before it
    written_at = (tmp_path / "alone" / "episodes-00000.jsonl").stat().st_mtime_ns
    again, resumed = experts(tmp_path, "alone")
    assert resumed == alone
    assert again == summary
    assert (tmp_path / "alone" / "episodes-00000.jsonl").stat().st_mtime_ns == written_at


@pytest.mark.slow
def test_files_of_several_runs_over_the_same_rows_go_together(tmp_path):
    """RWML's rollouts with one customer and with another are of the same tasks: one task id, and a name for each episode."""
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        experts(tmp_path, name, seed=seed)
    one, same, other = ([identity(t) for t in read(tmp_path / f"{name}.jsonl")] for name in ("one", "same", "other"))
    assert one == same
    assert len({*one, *other}) == 48
    tasks = [[t.task_id for t in read(tmp_path / f"{name}.jsonl")] for name in ("one", "other")]
    assert tasks[0] == tasks[1]


def test_a_folder_of_other_settings_and_a_damaged_shard_are_refused(tmp_path):
    experts(tmp_path)
    with pytest.raises(UserError, match="episodes of other settings \\(seed 0 -> 1\\)"):
        experts(tmp_path, seed=1)
    with pytest.raises(UserError, match="policy"):
        collect(GRID, ROWS, ScriptedPlayer(GRID, "random"), tmp_path / "y.jsonl", folder=tmp_path / "x", shard_size=8)
    shard = tmp_path / "x" / "episodes-00002.jsonl"
    shard.write_bytes(shard.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(UserError, match="episodes-00002.jsonl: damaged; remove it"):
        experts(tmp_path)


@pytest.mark.parametrize(
    "line", ["{", "7", "[]", "{}", '{"reason": 7}', "[" * 9999, '{"reason": ' + "9" * 9999 + "}", "\ud800"]
)
def test_a_damaged_reject_of_a_shard_is_refused(tmp_path, line):
    experts(tmp_path)
    (tmp_path / "x" / "episodes-00001.rejects.jsonl").write_bytes(line.encode(errors="surrogatepass") + b"\n")
    with pytest.raises(UserError, match="episodes-00001.rejects.jsonl: damaged; remove it and episodes-00001.jsonl"):
        experts(tmp_path)


def test_rows_that_do_not_fit_the_world_stop_it_before_the_first_episode(tmp_path):
    rows = [*ROWS, {"index": 1}]
    with pytest.raises(
        UserError, match="a row does not fit GridEnvironment.reset: missing a required argument: 'board'"
    ):
        collect(GRID, rows, ScriptedPlayer(GRID, "random"), tmp_path / "y.jsonl", folder=tmp_path / "x", shard_size=8)
    assert not (tmp_path / "y.jsonl").exists()
    assert not list(tmp_path.glob("x/episodes-*"))


def test_episodes_of_one_seed_do_not_depend_on_their_neighbours(tmp_path):
    for rows, name in ((ROWS, "all"), (ROWS[:3], "few")):
        collect(GRID, rows, ScriptedPlayer(GRID, "random"), tmp_path / f"{name}.jsonl", folder=tmp_path / name)
    everything, few = (list(read(tmp_path / f"{name}.jsonl")) for name in ("all", "few"))
    assert everything[:3] == few


@pytest.mark.slow
def test_dead_and_hung_episodes_are_counted_and_the_rest_goes_on(tmp_path):
    world = load("own_world:FragileEnvironment")
    rows = [{"seed": seed} for seed in range(10)]
    player = ScriptedPlayer(world, "random", workers=2, timeout=1.0)
    summary = collect(world, rows, player, tmp_path / "x.jsonl", folder=tmp_path / "work")
    assert summary.failed == {"died": 1, "timeout": 1, "error": 1}
    assert summary.as_dict()["lost"] == 2
    assert [trajectory.metadata["reset"]["seed"] for trajectory in read(tmp_path / "x.jsonl")] == [0, 1, 2, 4, 6, 8, 9]
    rejects = [json.loads(line) for line in (tmp_path / "x.rejects.jsonl").read_text().splitlines()]
    assert [(one["row"], one["reason"].split(":")[0]) for one in rejects] == [(3, "died"), (5, "timeout"), (7, "error")]
    assert json.loads(rejects[0]["raw"]) == {"seed": 3}


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_an_episode_that_no_file_can_hold_is_a_line_of_the_rejects(tmp_path, kind):
    """One that was written, and could not be read again, stopped this run and every later one."""
    world = load("own_world:OddEnvironment")
    rows = [{"seed": seed} for seed in range(7)]
    for _ in range(2):  # the second reads what the first wrote
        player = wandering(world, max_turns=1) if kind == "threads" else ScriptedPlayer(world, "random", max_turns=1)
        summary = collect(world, rows, player, tmp_path / "x.jsonl", folder=tmp_path / "work", shard_size=4)
        assert summary.failed == {"unreadable": 1, "error": 1}
        assert (summary.episodes, summary.as_dict()["reward"]) == (5, 1.0)
        rejects = [json.loads(line) for line in (tmp_path / "x.rejects.jsonl").read_text().splitlines()]
        assert [one["row"] for one in rejects] == [2, 4]
        assert rejects[0]["reason"] == "unreadable: BoundsError: larger than 67,108,864 bytes"
    kept = list(read(tmp_path / "x.jsonl"))
    assert [trajectory.metadata["reset"]["seed"] for trajectory in kept] == [0, 1, 3, 5, 6]
    assert kept[1].turns[0].observations[0].text == "Higher\ud800."


@pytest.mark.slow
def test_a_killed_run_goes_on_and_loses_a_shard_at_most(tmp_path):
    command = [sys.executable, "-m", "wm_plugin", "env", "rollout", "own_world:SlowEnvironment", "--json"]
    command += ["--policy", "random", "--count", "24", "--out", str(tmp_path / "x.jsonl"), "--shard-size", "4"]
    (tmp_path / "own_world.py").write_text(
        (HERE / "own_world.py").read_text()
        + "\n\nclass SlowEnvironment(GuessEnvironment):\n    def get_reward(self):\n        time.sleep(0.1)\n        return 0.0\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    shards = tmp_path / "x.work"
    while len(list(shards.glob("episodes-*.jsonl"))) < 2:
        assert running.poll() is None
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    times_before = {path.name: path.stat().st_mtime_ns for path in shards.glob("episodes-*.jsonl")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["episodes"] == 24
    assert len(times_before) >= 2
    assert not shards.exists()  # removed when all is done
    assert len(list(read(tmp_path / "x.jsonl"))) == 24


def clever(body):
    """Calls `move` by what the last board shows; now and then as text in tags."""
    from wm_plugin.worlds.grid import GridEnvironment, expert

    assert body["tools"][0]["function"]["name"] == "move"
    board = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")][-1]
    if board.endswith("!"):
        return "I am done."
    environment = GridEnvironment()
    environment.reset(board.rstrip(">"))
    arguments = expert()(environment)[1]
    if len(body["messages"]) % 4 == 1:
        return f"<tool_call>\n{json.dumps({'name': 'move', 'arguments': arguments})}\n</tool_call>"
    call = {"id": f"call-{time.monotonic_ns()}", "type": "function"}
    call["function"] = {"name": "move", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_server_plays(tmp_path):
    files = []
    for concurrency in (1, 8):
        with OpenAIServer(clever) as served:
            server = Server(served.base_url, "clever", concurrency=concurrency, temperature=1.0, max_tokens=64)
            out = tmp_path / f"{concurrency}.jsonl"
            summary = collect(GRID, ROWS, ServerPlayer(GRID, server), out, folder=tmp_path / str(concurrency))
            seeds = [body["seed"] for body in served.bodies]
        assert summary.as_dict()["success"] == 1.0
        assert len(set(seeds)) == len(seeds)  # each turn of each episode has its own
        files.append(out.read_bytes())
    assert files[0] == files[1]


def test_a_server_that_fails_costs_episodes_which_are_named(tmp_path):
    with OpenAIServer(clever, faults=lambda number: "500" if number % 6 == 5 else None) as served:
        server = Server(served.base_url, "clever", max_retries=0, concurrency=4)
        summary = collect(GRID, ROWS, ServerPlayer(GRID, server), tmp_path / "x.jsonl", folder=tmp_path / "work")
    assert summary.episodes + summary.failed["server error"] == 24
    assert summary.failed["server error"] > 0
    rejects = [json.loads(line) for line in (tmp_path / "x.rejects.jsonl").read_text().splitlines()]
    assert len(rejects) == summary.failed["server error"]
    assert rejects[0]["reason"] == 'server error: the server: status 500: {"error": {"message": "fault 500"}}'
    with OpenAIServer(clever, faults=lambda number: "500" if number % 3 == 0 else None) as served:
        server = Server(served.base_url, "clever", max_retries=12, concurrency=4, backoff=0.01)
        summary = collect(GRID, ROWS, ServerPlayer(GRID, server), tmp_path / "y.jsonl", folder=tmp_path / "retried")
    assert summary.episodes == 24


def test_a_wrong_address_stops_the_run(tmp_path):
    with OpenAIServer(clever, faults=lambda _: "404") as served:
        player = ServerPlayer(GRID, Server(served.base_url, "clever"))
        with pytest.raises(UserError, match="status 404 for the model"):
            collect(GRID, ROWS, player, tmp_path / "x.jsonl", folder=tmp_path / "work")


def test_a_model_in_this_process_plays(tmp_path):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    files, summaries = [], []
    for number in range(2):
        predictor = LocalPredictor(make_model(tokenizer, 0), tokenizer, max_new_tokens=1, batch_size=5)
        out = tmp_path / f"{number}.jsonl"
        player = LocalPlayer(GRID, predictor, seed=4)
        summaries.append(collect(GRID, ROWS, player, out, folder=tmp_path / str(number), shard_size=12))
        files.append(out.read_bytes())
    assert files[0] == files[1]
    assert summaries[0].episodes == 24
    assert set(summaries[0].calls) <= {"move"}
    assert any(trajectory.turns[-1].action.calls == () for trajectory in read(tmp_path / "0.jsonl"))  # it talks, too


def test_worlds_without_an_expert(tmp_path):
    world = load("own_world:GuessEnvironment")
    with pytest.raises(UserError, match="own_world:GuessEnvironment has no expert"):
        ScriptedPlayer(world, "expert")
