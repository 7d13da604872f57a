"""Trajectories of a world model: which are kept, what they say of their origin, and that a killed run writes the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from support.openai_server import OpenAIServer
from support.world_models import RealWorld
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.client.server import Server
from wm_plugin.data import expand, read
from wm_plugin.data.kinds import Exclusions, samples
from wm_plugin.data.transitions import identity
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.proposing import RandomProposals, prepared
from wm_plugin.lab.agents.synthesize import provenance, synthesize, wandering
from wm_plugin.worlds.agents.collect import collect
from wm_plugin.worlds.agents.players import LocalPlayer, ScriptedPlayer, ServerPlayer
from wm_plugin.worlds.agents.rollout import path_of, play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment, expert
from wm_plugin.worlds.simulated_world import SimulatedWorld
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

pytest.importorskip("transformers")

pytestmark = pytest.mark.host

GRID = load("grid")
ROWS = GRID.rows(12, seed=3)
GIVES_UP = {row["board"] for row in ROWS[1::3]}  # tasks that the agent does not try


def agent(body):
    """Walks to the goal by the last board that it sees; a task of `GIVES_UP` it gives up, with other words for another seed."""
    texts = [message["content"] for message in body["messages"] if message["role"] in ("user", "tool")]
    if any(board in texts[0] for board in GIVES_UP):
        return f"I give up, {body['seed']}."
    environment = GridEnvironment()
    environment.reset(texts[-1].rstrip(">!"))
    chosen = expert()(environment)
    if chosen is None:
        return "I see no way."
    function = {"name": "move", "arguments": json.dumps(chosen[1])}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}


MODEL = RealWorld(GRID, ROWS)


def real(body):
    """A world model that says what the real world says."""
    return MODEL.answer(body["messages"]).text


def world_of(server, **settings):
    return SimulatedWorld(
        GRID.spec, config=SimulationConfig(model="world", url=server.base_url, patience=20, **settings)
    )


class Servers:
    """A world model and an agent, each behind a server of its own."""

    def __init__(self, world=real, policy=agent, **options):
        self.world, self.policy = OpenAIServer(world, **options), OpenAIServer(policy)

    def __enter__(self):
        self.world.__enter__()
        self.policy.__enter__()
        return self

    def __exit__(self, *error):
        self.policy.__exit__(*error)
        self.world.__exit__(*error)

    def run(self, folder, name="x", *, rows=ROWS, count=4, concurrency=4, settings=None, **options):
        world = world_of(self.world, **(settings or {}))
        server = Server(self.policy.base_url, "walker", concurrency=concurrency, max_tokens=64, temperature=1.0)
        player = ServerPlayer(world, server, max_turns=8)
        out = folder / f"{name}.jsonl"
        report = synthesize(world, rows, player, out, count=count, folder=folder / f"{name}.work", **options)
        return report, out


def test_successes_are_kept_until_there_are_enough(tmp_path):
    with Servers() as servers:
        report, out = servers.run(tmp_path)
        assert report.as_dict() | {"world_model": None} == {
            "played": len(ROWS),  # one shard
            "attempts": 6,  # of which the second and the fifth are given up
            "kept": 4,
            "success": 4 / 6,
            "turns": report.turns / 4,
            "tasks": 4,
            "left_out": {"no success": 2},
            "world_model": None,
        }
        assert report.figures["requests"] == len(servers.world.bodies)
        kept = list(read(out))
        assert [one.metadata["reset"]["board"] for one in kept] == [ROWS[n]["board"] for n in (0, 2, 3, 5)]
        everything, other = servers.run(tmp_path, "all", keep="all")
        assert (everything.attempts, everything.left_out, len(list(read(other)))) == (4, Counter(), 4)
    few, out = None, None
    with Servers() as servers:
        few, out = servers.run(tmp_path, "few", rows=ROWS[:3], count=9)
    assert (few.attempts, few.kept, len(list(read(out)))) == (3, 2, 2)


def test_the_file_is_the_same_for_any_concurrency_and_shards_and_after_an_interruption(tmp_path):
    with Servers() as servers:
        _, first = servers.run(tmp_path, "first", shard_size=2)
        for name, options in {"second": {"concurrency": 1, "shard_size": 5}, "third": {"shard_size": 12}}.items():
            _, other = servers.run(tmp_path, name, **options)
            assert other.read_bytes() == first.read_bytes()
        asked = len(servers.policy.bodies)
        before = first.read_bytes()
        first.unlink()
        (tmp_path / "first.work" / "episodes-00001.jsonl").unlink()
        report, again = servers.run(tmp_path, "first", shard_size=2)
        assert again.read_bytes() == before
        assert report.kept == 4
        assert 0 < len(servers.policy.bodies) - asked < asked / 3  # one shard of three
        with pytest.raises(UserError, match="episodes of other settings"):
            servers.run(tmp_path, "first", shard_size=2, settings={"seed": 1})


def test_a_trajectory_says_that_it_is_synthetic(tmp_path):
    with Servers() as servers:
        _, out = servers.run(tmp_path)
        player = ServerPlayer(GRID, Server(servers.policy.base_url, "walker", max_tokens=64), max_turns=8)
        collect(GRID, ROWS, player, tmp_path / "real.jsonl", folder=tmp_path / "real")
        server = servers.world.base_url
    synthetic, genuine = list(read(out)), list(read(tmp_path / "real.jsonl"))
    assert all(one.metadata["synthetic"] for one in synthetic)
    assert not any("synthetic" in one.metadata for one in genuine)
    assert synthetic[0].metadata["synthetic"] == {
        "world_model": {"model": "world", "server": server},
        "prompts": "word2world",
        "prompts_digest": None,
        "hidden": "all",
        "temperature": 0.0,
        "seed": 0,
        "success": {"by": "predicted"},
        "policy": {"policy": "walker", "seed": 0, "max_turns": 8, "host": "trl", "temperature": 1.0, "max_tokens": 64},
    }
    assert synthetic[0].metadata["policy"] == "walker"
    assert synthetic[0].source.file == "simulated grid"
    assert not {identity(one) for one in synthetic} & {identity(one) for one in genuine}
    assert [turn.action for turn in synthetic[0].turns] == [turn.action for turn in genuine[0].turns]
    assert {key for key in synthetic[0].metadata["figures"] if "/" in key} == {
        "simulation/repairs",
        "simulation/harmless",
    }
    # what a world model said is no target of another one; the agent's turns are as good as any
    assert list(expand(synthetic)) == []
    exclusions = Exclusions()
    assert list(samples(out, "word2world", exclusions=exclusions)) == []
    assert exclusions.reasons == {"no target": 4}
    assert len(list(samples(out, "rft"))) == 4


def test_the_world_is_no_longer_asked_after_the_first_board(tmp_path):
    """A world model that lets every first move win, wherever it leads."""
    with Servers(world=lambda body: "You are there! [SUCCESS]", policy=agent) as servers:
        _, out = servers.run(tmp_path, rows=[ROWS[0], ROWS[2]] * 4, count=2)
    assert [(len(one.turns), one.success, one.reward) for one in read(out)] == [(1, True, 1.0)] * 2
    assert {one.turns[0].observations[0].text for one in read(out)} == {"You are there!"}


def test_a_repetition_is_left_out(tmp_path):
    with Servers() as servers:
        report, out = servers.run(tmp_path, rows=[ROWS[0], ROWS[0], ROWS[2]], count=2)
    assert report.left_out == {"repeated": 1}
    assert len({one.task_id for one in read(out)}) == 2


def test_episodes_without_an_answer_are_left_out_and_a_world_model_that_is_gone_stops_the_run(tmp_path):
    lies = iter(["", "", *[None] * 9999])  # the first answer, and when it is asked for again

    def unsure(body):
        said = next(lies)
        return real(body) if said is None else said

    with Servers(world=unsure) as servers:
        report, out = servers.run(tmp_path, concurrency=1)
        assert report.left_out == {"lost": 1, "no success": 2}
        assert all(not one.metadata["figures"]["lost"] for one in read(out))
    with Servers(world=lambda body: "") as servers:
        with pytest.raises(UserError, match=r"all 9 episodes of a shard were lost \(The world was lost \(empty\)\.\)"):
            servers.run(tmp_path, "gone", rows=[ROWS[0]] * 9)
        assert not (tmp_path / "gone.jsonl").exists()
        assert not list(tmp_path.glob("gone.work/episodes-*"))  # so that the same command plays them
    with Servers(faults=lambda _: "404") as servers, pytest.raises(UserError, match="status 404 for the model"):
        servers.run(tmp_path, "refused")


def test_a_verifier_or_a_rule_decides_if_the_simulation_says_so(tmp_path):
    with Servers() as servers:
        settings = {"success": "rule", "rule": "support.world_models:always"}
        report, out = servers.run(tmp_path, count=3, settings=settings)
    assert (report.kept, report.attempts) == (3, 3)
    about = next(read(out)).metadata["synthetic"]["success"]
    assert about == {"by": "rule", "rule": "support.world_models:always", "threshold": 0.5}
    config = SimulationConfig(
        model="w", url="http://h/v1", success="verifier", verifier={"path": "judge", "kwargs": {"server": {"key": "k"}}}
    )
    assert provenance(config)["success"] == {"by": "verifier", "verifier": "judge", "threshold": 0.5}


def test_a_wanderer_walks_without_looking_and_there_is_no_expert(tmp_path):
    with Servers() as servers:
        world = world_of(servers.world)
        for workers in (1, 3):
            player = wandering(world, seed=5, workers=workers, max_turns=6)
            synthesize(
                world, ROWS, player, tmp_path / f"{workers}.jsonl", count=2, keep="all", folder=tmp_path / f"{workers}"
            )
        with pytest.raises(UserError, match="grid has no expert"):
            ScriptedPlayer(world, "expert")
    one, three = ((tmp_path / f"{workers}.jsonl").read_bytes() for workers in (1, 3))
    assert one == three
    assert next(read(tmp_path / "1.jsonl")).metadata["policy"] == "random"


def test_a_model_in_this_process_is_named_by_its_weights(tmp_path):
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    for seed, name in enumerate(("one", "two")):
        make_model(tokenizer, seed).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    models = [provenance(SimulationConfig(model=str(tmp_path / name)))["world_model"] for name in ("one", "two")]
    assert [one["model"] for one in models] == [str(tmp_path / name) for name in ("one", "two")]
    assert models[0]["weights"] != models[1]["weights"]
    with OpenAIServer(agent) as server:
        world = SimulatedWorld(GRID.spec, config=SimulationConfig(model=str(tmp_path / "one"), max_tokens=8))
        predictor = LocalPredictor(make_model(tokenizer, 0), tokenizer, max_new_tokens=1, batch_size=8)
        player = LocalPlayer(world, predictor, max_turns=6, at_once=4)
        report = synthesize(
            world, ROWS[:3], player, tmp_path / "x.jsonl", count=3, keep="all", folder=tmp_path / "work"
        )
        assert report.attempts == 3
        assert not server.bodies


def test_a_wanderers_proposals_depend_on_the_state_alone():
    played = [play(GRID.make(), row, scripted(GRID.expert()), max_turns=6) for row in ROWS[:3]]
    proposals = RandomProposals(GRID, seed=1)
    assert list(prepared(played, proposals, path_of(GRID.make()), at_once=2)) == played
    environment = GRID.make()
    for trajectory in played:
        state = trajectory.model_copy(update={"turns": trajectory.turns[:1]})
        first, again = (list(proposals(state, environment, 3)) for _ in range(2))
        assert first == again
        assert len({action.to_bytes() for action in first}) == 4  # all four moves are among so many draws
    assert list(RandomProposals(GRID, seed=2)(played[0], environment, 3)) != list(proposals(played[0], environment, 3))


@pytest.mark.slow
def test_a_killed_command_goes_on_and_writes_the_same(tmp_path):
    with Servers(latency=0.05) as servers:
        (tmp_path / "sim.yaml").write_text(f"simulation: {{url: '{servers.world.base_url}', model: world}}\n")
        command = [sys.executable, "-m", "wm_plugin", "lab", "synthesize", "grid", "--seed", "3", "--json"]
        command += ["--policy", servers.policy.base_url, "--model", "walker", "--simulation", "sim.yaml"]
        command += ["--count", "8", "--tasks", "12", "--most", "24", "--shard-size", "2", "--concurrency", "2"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])}

        def start(out):
            return subprocess.Popen([*command, "--out", out], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)

        whole = start("whole.jsonl")
        running = start("x.jsonl")
        while len(list((tmp_path / "x.work").glob("episodes-*.jsonl"))) < 2:
            assert running.poll() is None
            time.sleep(0.02)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        again = start("x.jsonl")
        result = json.loads(again.communicate()[0])
        whole.communicate()
    assert (again.returncode, whole.returncode) == (0, 0)
    assert (result["kept"], result["ok"]) == (8, True)
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not (tmp_path / "x.work").exists()
