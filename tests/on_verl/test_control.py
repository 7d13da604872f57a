"""`wm.control` on verl: from the config to what the policy reads, in trainings and validations; the column of a step's factor."""

import pickle

import pytest

pytest.importorskip("verl")

from tensordict.tensorclass import NonTensorData
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from on_verl.test_agent_loop import call, make_tokenizer, rollout
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import Curriculum, Strength
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl.config import WorldModelConfig, read_config
from wm_plugin.verl.names import INFO, TRAINING
from wm_plugin.verl.trainer import WorldModelTrainer
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.wrappers.control import ControlConfig, config_of
from wm_plugin.worlds.wrappers.control.perturbations import ERRORS
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig

ROOMS = "on_verl.test_agent_loop:Rooms"
FAILS = {"perturbations": [{"name": "error", "turns": [2], "kinds": ["timeout"]}]}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.mark.parametrize(("strength", "failing"), [(1.0, True), (0.0, False)])
def test_a_step_s_factor_decides_what_the_policy_reads(tokenizer, strength, failing):
    said = [*[call("say", text=f"hi {number}") for number in range(3)], "end"]
    output = rollout(
        tokenizer, said, {"environment": ROOMS, "control": FAILS}, row={TRAINING: strength}, response_length=2000
    )
    assert (ERRORS["timeout"][0] in tokenizer.decode(output.response_ids)) is failing
    assert output.extra_fields[INFO]["calls"] == 2 + (not failing)  # what failed did not reach the world


def wm(**fields):
    return {"wm": {"coeff": 0.1, "environment": "grid", **fields}}


def test_the_classes():
    control = {"perturbations": [{"name": "error", "rate": 0.1}]}
    (kind,) = read_config(wm(control=control, episode_reward={"rescale": True})).classes().values()
    assert issubclass(kind, GridEnvironment)
    assert config_of(kind) == ControlConfig.read(control, "control")
    several = read_config(wm(environment={"a": "grid", "b": "wordle"}, control={**control, "worlds": ["b"]}))
    assert [config_of(kind) is not None for kind in several.classes().values()] == [False, True]
    assert config_of(several.class_of({"environment": "b"})) is not None
    assert config_of(several.class_of({"environment": "a"})) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"control": 3}, "wm.control is 3; write fields"),
        (
            {"control": {"perturbations": [{"name": "eror"}]}},
            "wm.control.perturbations[0].name is 'eror'; did you mean 'error'?",
        ),
        (
            {"control": {"perturbations": [{"name": "error", "rate": 0.1, "tools": ["mov"]}]}},
            "wm.control.perturbations[0].tools: GridEnvironment has no tool 'mov'; did you mean 'move'?",
        ),
        ({"control": FAILS, "environment": None}, "wm.control is for episodes in an environment"),
        (
            {"control": FAILS | {"worlds": ["grit"]}, "environment": {"grid": "grid"}},
            "wm.control.worlds: there is no environment 'grit'",
        ),
    ],
)
def test_what_does_not_fit(fields, message):
    with pytest.raises(UserError) as error:
        read_config(wm(**fields))
    assert str(error.value).startswith(message)


def test_a_step_s_factor_is_in_the_rows_and_follows_the_episodes(monkeypatch):
    ours = object.__new__(WorldModelTrainer)  # making one starts Ray
    control = ControlConfig.read(FAILS | {"curriculum": {"steps": 2}}, "control")
    ours._wm = WorldModelConfig(EchoConfig(0), "grid", control=control)
    ours._wm_turn_budget, ours._wm_episodes, ours.local_trigger_step, ours.parameter_sync_step = None, [], 0, 1
    ours._wm_strength = Strength(Curriculum(steps=2))
    logged, columns = [], []
    for _ in range(3):
        rows = tu.get_tensordict({"uid": ["a", "b"]})
        monkeypatch.setattr(trainer_base.PPOTrainer, "_next_train_batch", lambda self, count, rows=rows: rows)
        batch = ours._next_train_batch(2)
        kept = batch.select(*[key for key in batch.keys() if not isinstance(batch.get(key), NonTensorData)])  # noqa: SIM118
        columns.append([dict(part.items())[TRAINING][0].data for part in pickle.loads(pickle.dumps(kept)).chunk(2)])
        metrics: dict[str, float] = {}
        ours._record_episodes([{"success": 1.0, "control/calls": 4.0, "control/error": 1.0}], metrics)
        logged.append((metrics["wm/control_strength"], metrics["wm/env/control/error"]))
    assert columns == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    simulation = SimulationConfig(url="http://localhost:1/v1", model="w")
    for given, column in (({"simulation": simulation}, [1.0, 1.0]), ({}, None)):  # the mark of a training, and no mark
        ours._wm, ours._wm_strength = WorldModelConfig(EchoConfig(0), "grid", **given), None
        rows = tu.get_tensordict({"uid": ["a", "b"]})
        monkeypatch.setattr(trainer_base.PPOTrainer, "_next_train_batch", lambda self, count, rows=rows: rows)
        batch = ours._next_train_batch(2)
        assert (list(batch[TRAINING]) if TRAINING in batch.keys() else None) == column  # noqa: SIM118
    assert logged == [(0.0, 0.25), (0.5, 0.25), (1.0, 0.25)]
