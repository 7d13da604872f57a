"""Worlds that are simulated, checked or perturbed on verl: who waits for whom, a step's factor, and runs of main_ppo."""

import asyncio
import json
import pickle
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

from tensordict.tensorclass import NonTensorData
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from support.agent_loop import call, config, episode, make_tokenizer, rollout
from support.bare_on_verl import bare
from support.openai_server import OpenAIServer
from support.perfect import perfect, settings
from support.run_on_verl import run_recipe, walking_policy
from wm_plugin.cli.main import main
from wm_plugin.hosting.annealing import Curriculum, Strength
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl.config import WorldModelConfig
from wm_plugin.verl.names import INFO, MESSAGES, TRAINING
from wm_plugin.verl.trainer import WorldModelTrainerMixin
from wm_plugin.worlds import grid
from wm_plugin.worlds.wrappers.control import ControlConfig
from wm_plugin.worlds.wrappers.control.perturbations import ERRORS
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

ROW = {"raw_prompt": grid.dataset_rows(1)[0]["prompt"], "extra_info": {"board": "A..G\n....\n....\n...."}}
SAID = [*[call("move", direction=one) for one in "DUD"], "Done."]
FAILS = {"perturbations": [{"name": "error", "turns": [2], "kinds": ["timeout"]}]}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(merges=False)


def test_of_several_worlds_some_are_simulated(tokenizer):
    with OpenAIServer(lambda body: "A..G\n....\n....\n....>") as server:
        wm = {"environment": {"real": "grid", "sim": "grid"}, "simulation": settings(server, worlds=["sim"])}
        rows = [
            {**ROW, TRAINING: 1.0, "extra_info": {**ROW["extra_info"], "environment": name}} for name in ("real", "sim")
        ]
        real, simulated = (rollout(tokenizer, SAID, wm, row=row, response_length=2000) for row in rows)
    assert "simulation/requests" not in real.extra_fields[INFO]
    assert simulated.extra_fields[INFO]["simulation/requests"] > 0


@pytest.mark.parametrize(("dress", "count"), [("simulation", 40), ("verify", 12)])
def test_episodes_ask_at_the_same_time_and_nobody_waits_for_another(tokenizer, dress, count):
    """Forty episodes are more than the default pool has threads; the server takes a while."""
    beats = []

    async def heart():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def run(made):
        heartbeat = asyncio.create_task(heart())
        await asyncio.gather(*(episode(tokenizer, list(SAID), made, {**ROW, TRAINING: 1.0}) for _ in range(count)))
        heartbeat.cancel()

    with OpenAIServer(lambda body: "....\n....\n....\n...A>", latency=0.25) as server:
        model = settings(server, cache=False)
        fields = model if dress == "simulation" else {"tools": ["move"], "world_model": model}
        asyncio.run(run(config({"environment": "grid", dress: fields}, 2000)))
    assert server.most_at_once >= count * 0.8
    assert len(server.bodies) == 3 * count
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
    with pytest.raises(RuntimeError, match="were not simulated, though wm.simulation is set"):
        WorldModelTrainerMixin._check_worlds(trainer, [{"success": 1.0}])


@pytest.mark.parametrize(("strength", "failing"), [(1.0, True), (0.0, False)])
def test_a_step_s_factor_decides_what_the_policy_reads(tokenizer, strength, failing):
    wm = {"environment": "grid", "control": FAILS}
    output = rollout(tokenizer, SAID, wm, row={**ROW, TRAINING: strength}, response_length=2000)
    assert (ERRORS["timeout"][0] in tokenizer.decode(output.response_ids)) is failing
    assert output.extra_fields[INFO]["actions"] == 3 + (not failing)  # what failed did not reach the world


def test_a_step_s_factor_is_in_the_rows_and_follows_the_episodes(monkeypatch):
    ours = bare()

    def next_batch(strength, **fields):
        rows = tu.get_tensordict({"uid": ["a", "b"]})
        monkeypatch.setattr(trainer_base.PPOTrainer, "_next_train_batch", lambda self, count: rows)
        ours._wm, ours._wm_strength = WorldModelConfig(EchoConfig(0), "grid", **fields), strength
        return ours._next_train_batch(2)

    control = ControlConfig.read(FAILS | {"curriculum": {"steps": 2}}, "control")
    strength, logged, columns = Strength(Curriculum(steps=2)), [], []
    for _ in range(3):
        batch = next_batch(strength, control=control)
        kept = batch.select(*[key for key in batch.keys() if not isinstance(batch.get(key), NonTensorData)])  # noqa: SIM118
        columns.append([dict(part.items())[TRAINING][0].data for part in pickle.loads(pickle.dumps(kept)).chunk(2)])
        metrics: dict[str, float] = {}
        ours._record_episodes([{"success": 1.0, "control/calls": 4.0, "control/error": 1.0}], metrics)
        logged.append((metrics["wm/control_strength"], metrics["wm/env/control/error"]))
    assert columns == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    assert logged == [(0.0, 0.25), (0.5, 0.25), (1.0, 0.25)]
    simulation = SimulationConfig(url="http://localhost:1/v1", model="w")
    assert list(next_batch(None, simulation=simulation)[TRAINING]) == [1.0, 1.0]  # the mark of a training
    assert TRAINING not in next_batch(None).keys()  # noqa: SIM118


SAME = ("critic/", "actor/", "echo/", "wm/env/", "response_length/", "prompt_length/", "num_turns/", "val-")


def check_the_same(plain, other):
    assert (plain.code, other.code) == (0, 0), plain.output[-2000:] + other.output[-3000:]
    assert len(plain.steps) == len(other.steps) == 2
    for one, two in zip(plain.steps, other.steps, strict=True):
        names = [name for name in one if name.startswith(SAME) and "perf/" not in name]
        assert len(names) > 20
        for name in names:
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


def model_of(server):
    return f'{{url: "{server.base_url}", model: world, api_key_env: null}}'


@pytest.mark.nightly
def test_sim_rl_is_real_rl_step_for_step(tmp_path):
    """Two runs of main_ppo of one seed, in the grid and in a perfect world model: the metrics of each step are the same."""
    walking_policy(tmp_path / "runs" / "tiny_random")
    overrides = ("trainer.total_training_steps=2", "trainer.test_freq=2", "data.val_max_samples=8")
    real = run_recipe("echo_grpo_tiny", tmp_path, *overrides)
    with perfect("grid", grid.dataset_rows(960, seed=0)) as server:
        simulated = run_recipe("echo_grpo_tiny", tmp_path, *overrides, f"wm.simulation={model_of(server)}")
    check_the_same(real, simulated)
    assert len(server.bodies) > 0
    assert sum(simulated.series("wm/env/simulation/requests")) > 0
    assert simulated.series("wm/env/lost") == [0, 0]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_table_comes_from_one_command(tmp_path):
    settings = {"host": "verl", "seeds": "0", "steps": "1", "episodes": "400", "wm_steps": "60", "boards": "16"}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    assert main(["lab", "pipeline", "sim_rl_tiny", *words, "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["compared"]["rows"]
    arms = {row["arm"] for row in rows if row["measure"] == "success"}
    assert {"start", "real", "sim", "controlled", "mixed"} <= arms


@pytest.mark.nightly
def test_main_ppo_checks_its_episodes(tmp_path):
    """Where all checks pass, a run's steps are those of a run without them; where none does, refused calls do not go out."""
    walking_policy(tmp_path / "runs" / "tiny_random")

    def run(*overrides):
        return run_recipe("echo_grpo_tiny", tmp_path, "trainer.total_training_steps=2", *overrides)

    def asks(server, budget):
        return f"wm.verify={{tools: [move], budget: {budget}, world_model: {model_of(server)}}}"

    with OpenAIServer(lambda body: "You are there. [SUCCESS]") as yes, OpenAIServer(lambda body: "No.") as no:
        plain, passed, refused = run(), run(asks(yes, 50)), run(asks(no, 2))
    check_the_same(plain, passed)
    assert refused.code == 0, refused.output[-3000:]
    assert all(value > 0 for value in passed.series("wm/env/verify/checks"))
    for before, step in zip(plain.steps, refused.steps, strict=True):
        assert 0 < step["wm/env/verify/checks"] <= 2
        assert step["wm/env/verify/refused"] == step["wm/env/verify/checks"]
        assert step["wm/env/actions"] < before["wm/env/actions"]


def test_the_messages_of_a_rollout_reach_a_filter(tokenizer):
    """Which the trainer calls: the loop passes on what the policy said and read, after the prompt."""
    wm = {"environment": "grid", "select_rollout": "operator:contains"}
    output = rollout(tokenizer, SAID, wm, row=ROW, response_length=2000)
    messages = output.extra_fields[MESSAGES]
    assert [message["role"] for message in messages] == ["assistant", "tool"] * 3 + ["assistant"]
    assert messages[-1]["content"] == "Done."
    assert all(message["content"] in tokenizer.decode(output.response_ids) for message in messages[1::2])
    assert MESSAGES not in rollout(tokenizer, SAID, {"environment": "grid"}, row=ROW, response_length=2000).extra_fields
