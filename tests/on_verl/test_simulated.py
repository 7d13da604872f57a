"""Simulated worlds on verl: the world model is asked for all episodes at once, and a perfect one is the real world."""

import asyncio
import random
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from support.agent_loop import call, config, episode, make_tokenizer
from support.openai_server import OpenAIServer
from support.perfect import perfect, settings
from support.run_on_verl import run_recipe, walking_policy
from wm_plugin.errors import UserError
from wm_plugin.verl.config import read_config
from wm_plugin.verl.names import INFO, TRAINING
from wm_plugin.verl.trainer import WorldModelTrainerMixin
from wm_plugin.worlds import grid

ROWS = grid.dataset_rows(6, seed=3)
BOARD = {"raw_prompt": ROWS[0]["prompt"], "extra_info": {"board": ROWS[0]["board"]}}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(merges=False)


@pytest.fixture(scope="module")
def server():
    with perfect("grid", ROWS) as server:
        yield server


def turns(seed, moves=7):
    """A wanderer's, with calls of no tool, of wrong arguments, two at once, and words."""
    rng = random.Random(seed)
    odd = [call("fly"), call("move", way="U"), call("move", direction="X"), "Hm. " + call("move", direction="L")]
    said = [call("move", direction=rng.choice("UDLR")) for _ in range(moves)]
    said[rng.randrange(2)] = odd[seed % len(odd)]
    return [*said, "Done."]


def rows(**columns):
    return [{"raw_prompt": row["prompt"], "extra_info": {"board": row["board"]}, **columns} for row in ROWS]


def play(tokenizer, wm, some, said=turns):
    """Episodes that run at the same time, as in a worker of verl's."""
    made = config(wm, response_length=2000)

    async def run():
        return await asyncio.gather(*(episode(tokenizer, said(number), made, row) for number, row in enumerate(some)))

    return asyncio.run(run())


def test_of_several_worlds_some_are_simulated(tokenizer, server):
    wm = {"environment": {"real": "grid", "sim": "grid"}, "simulation": settings(server, worlds=["sim"], cache=False)}
    some = [{**row, TRAINING: 1.0} for row in rows()[:2]]
    for row, name in zip(some, ("real", "sim"), strict=True):
        row["extra_info"] = {**row["extra_info"], "environment": name}
    real, simulated = play(tokenizer, wm, some)
    assert "simulation/requests" not in real.extra_fields[INFO]
    assert simulated.extra_fields[INFO]["simulation/requests"] > 0
    assert not read_config(config(wm)).simulates_all


def test_episodes_ask_at_the_same_time_and_nobody_waits_for_another(tokenizer):
    """Forty episodes, more than the default pool has threads, on a server that takes a while."""
    latency, count = 0.25, 40
    beats = []

    async def heart():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run(made):
        heartbeat = asyncio.create_task(heart())
        row = BOARD | {TRAINING: 1.0}
        said = [call("move", direction="U"), call("move", direction="D"), "Done."]
        await asyncio.gather(*(episode(tokenizer, list(said), made, row) for _ in range(count)))
        heartbeat.cancel()

    with OpenAIServer(lambda body: "....\n....\n....\n...A>", latency=latency) as server:
        asyncio.run(run(config({"environment": "grid", "simulation": settings(server, cache=False)}, 2000)))
    assert server.most_at_once >= count * 0.8
    assert len(server.bodies) == 2 * count
    assert len(beats) > 5  # the loop was free while the server took its time


@pytest.mark.parametrize(("lost", "stops"), [(2, False), (3, True)])
def test_too_many_lost_worlds_stop_the_run(lost, stops):
    trainer = SimpleNamespace(_wm=SimpleNamespace(max_lost=0.5, simulates_all=False))
    episodes = [{"lost": 1.0}] * lost + [{"lost": 0.0}] * (4 - lost)
    refusal = pytest.raises(RuntimeError, match="3 of 4 episodes lost their world .*wm.max_lost")
    with refusal if stops else nullcontext():
        WorldModelTrainerMixin._check_worlds(trainer, episodes)


def test_episodes_in_the_real_world_by_mistake_stop_the_run():
    trainer = SimpleNamespace(_wm=SimpleNamespace(max_lost=0.5, simulates_all=True))
    WorldModelTrainerMixin._check_worlds(trainer, [{"simulation/requests": 0.0, "lost": 0.0}])
    with pytest.raises(RuntimeError, match="not in the world model, though wm.simulation says so"):
        WorldModelTrainerMixin._check_worlds(trainer, [{"success": 1.0}])


@pytest.mark.parametrize(
    ("wm", "message"),
    [
        ({"environment": "grid", "simulation": {"modell": "x"}}, "wm.simulation has no field 'modell'.*'model'"),
        ({"environment": "grid", "simulation": {"url": "http://h/v1"}}, "wm.simulation.model is missing"),
        ({"environment": "grid", "simulation": "x"}, "wm.simulation is 'x'; write fields"),
        ({"simulation": {"model": "x"}}, "wm.simulation is for episodes in an environment"),
        (
            {"environment": {"a": "grid"}, "simulation": {"model": "x", "worlds": ["b"]}},
            "wm.simulation.worlds: there is no environment 'b'",
        ),
    ],
)
def test_mistakes_in_the_config_are_one_line(wm, message):
    with pytest.raises(UserError, match=message) as error:
        read_config(config(wm))
    assert "\n" not in str(error.value)


SAME = ("critic/", "actor/", "echo/", "wm/env/", "response_length/", "prompt_length/", "num_turns/", "val-")


@pytest.mark.nightly
def test_sim_rl_is_real_rl_step_for_step(tmp_path):
    """Two runs of main_ppo of one seed, in the grid and in a perfect world model: the metrics of each step are the same."""
    walking_policy(tmp_path / "runs" / "tiny_random")
    overrides = ("trainer.total_training_steps=2", "trainer.test_freq=2", "data.val_max_samples=8")
    real = run_recipe("echo_grpo_tiny", tmp_path, *overrides)
    with perfect("grid", grid.dataset_rows(960, seed=0)) as server:
        simulation = f'wm.simulation={{url: "{server.base_url}", model: world, api_key_env: null}}'
        simulated = run_recipe("echo_grpo_tiny", tmp_path, *overrides, simulation)
        asked = len(server.bodies)
    assert (real.code, simulated.code) == (0, 0), real.output[-2000:] + simulated.output[-3000:]
    assert asked > 0
    assert len(real.steps) == len(simulated.steps) == 2
    for one, other in zip(real.steps, simulated.steps, strict=True):
        names = [name for name in one if name.startswith(SAME) and "perf/" not in name]
        assert len(names) > 20
        for name in names:
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    assert sum(simulated.series("wm/env/simulation/requests")) > 0
    assert simulated.series("wm/env/lost") == [0, 0]


@pytest.mark.nightly
def test_the_table_comes_from_one_command(tmp_path):
    done = run_recipe("sim_table_tiny", tmp_path, "--seeds", "1", "--steps", "1", "--quick", timeout=1800)
    assert done.code == 0, done.output[-3000:]
    folder = tmp_path / "runs" / "sim_table_tiny" / "verl"
    assert (folder / "report.html").exists()
    for arm in ("start", "real", "sim", "controlled", "mixed"):
        assert f"| {arm} |" in (folder / "table.md").read_text()
