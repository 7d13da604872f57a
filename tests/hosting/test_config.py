"""A run's config, once for both hosts: what does not fit together, and how environments are dressed."""

import json

import pytest

from wm_plugin.errors import UserError
from wm_plugin.hosting.config import RunConfig
from wm_plugin.hosting.tags import in_tags, takes_tags
from wm_plugin.hosting.world import options_of
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.maze import MazeEnvironment
from wm_plugin.worlds.taxi import TaxiEnvironment
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import config_of
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.simulated import is_simulated
from wm_plugin.worlds.wrappers.verified import Verified, verified

MODEL = {"url": "http://localhost:1/v1", "model": "w"}
CONTROL = {"perturbations": [{"name": "error", "rate": 0.1}]}
VERIFY = {"world_model": MODEL}
AHEAD = {"depth": 2, "marks": {"over": "!", "won": "P"}}
WRITE = "write a name (wm env list), package.module:Class, or {name: class}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"environment": "{grid"}, f"environment is '{{grid'; {WRITE}"),
        ({"environment": 3}, f"environment is 3; {WRITE}"),
        ({"environment": ["grid"]}, f"environment is ['grid']; {WRITE}"),
        ({"environment": {"a": 3}}, f"environment is {{'a': 3}}; {WRITE}"),
        ({"environment": {}}, f"environment is {{}}; {WRITE}"),
        ({"environment": "grit"}, "environment: there is no 'grit'; did you mean 'grid'"),
        ({"environment": {"a": "grid", "b": "grit"}}, "environment: there is no 'grit'; did you mean 'grid'"),
        ({"protocol": "xml", "environment": "maze"}, "protocol is 'xml'; there is 'tags', 'tools'"),
        ({"protocol": "tags", "environment": "sql"}, "protocol: tags writes one text of actions"),
        ({"control": "{perturb", "environment": "grid"}, "control is not JSON"),
        ({"verify": "budget", "environment": "shop"}, "verify is 'budget'; write fields"),
        ({"verify": VERIFY, "environment": "grid"}, "verify: GridEnvironment says of no tool that it is irreversible"),
        ({"verify": VERIFY, "environment": "shop", "simulation": MODEL}, "verify: ShopEnvironment is simulated"),
        ({"episode_reward": True, "environment": "grid"}, "episode_reward is True; write fields"),
        (
            {"episode_reward": {"rescale": True}, "environment": "collections:OrderedDict"},
            "OrderedDict has no get_reward: there is no outcome to rescale",
        ),
        (
            {"control": {"perturbations": [{"name": "error", "rate": 1, "tools": ["mov"]}]}, "environment": "grid"},
            "control.perturbations[0].tools: GridEnvironment has no tool 'mov'; did you mean 'move'?",
        ),
        ({"look_ahead": 3, "environment": "grid"}, "look_ahead is 3; write a mapping"),
        ({"look_ahead": {"a": {"dept": 2}}, "environment": "grid"}, "look_ahead.a has no field 'dept'"),
        ({"look_ahead": {"a": {"depth": 2}}, "environment": "grid"}, "look_ahead.value is success"),
        ({"look_ahead": {"a": {**AHEAD, "world_model": "real"}}, "environment": "grid"}, "look_ahead.a.world_model is"),
        ({"look_ahead": {"a": AHEAD}, "environment": "grid", "protocol": "tags"}, "look_ahead needs protocol: tools"),
    ],
)
def test_a_mistake_is_one_line(fields, message):
    with pytest.raises(UserError) as error:
        RunConfig.read(fields).classes()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


EPISODES = {
    "simulation": MODEL,
    "control": CONTROL,
    "verify": VERIFY,
    "episode_reward": {"rescale": True},
    "protocol": "tags",
    "turn_budget": {"start": 3},
    "look_ahead": {"a": AHEAD},
}


@pytest.mark.parametrize("name", EPISODES)
def test_what_is_of_episodes_needs_an_environment(name):
    with pytest.raises(
        UserError, match=f"^{name} is for episodes in an environment, and environment is null; name one"
    ):
        RunConfig.read({name: EPISODES[name]})


@pytest.mark.parametrize("name", ["simulation", "control", "verify"])
def test_a_world_that_is_not_there_is_not_dressed(name):
    with pytest.raises(UserError, match=f"{name}.worlds: there is no environment 'gird'; did you mean 'grid'"):
        RunConfig.read({"environment": {"grid": "grid"}, name: {**EPISODES[name], "worlds": ["gird"]}})


def dressed(environment, **fields):
    return RunConfig.read({"environment": environment, **fields}).factory


def test_a_single_environment_is_dressed_in_all_that_the_run_has():
    assert dressed("grid") is dressed("grid", verify={"budget": 0}) is GridEnvironment
    assert dressed("maze", protocol="tags", episode_reward={"rescale": True}) is in_tags(
        rewarded(MazeEnvironment, rescale=True)
    )
    assert dressed("shop", verify=VERIFY) is verified(load("shop").environment, VERIFY)
    kind = dressed("grid", control=json.dumps(CONTROL), episode_reward={"rescale": True})
    assert issubclass(kind, GridEnvironment)
    assert config_of(kind).as_mapping() == CONTROL
    assert takes_tags(dressed("wordle", protocol="tags", verify=json.dumps(VERIFY)))


def test_of_several_environments_each_is_dressed_by_its_name():
    assert dressed({"maze": "maze", "taxi": "taxi"}, protocol="tags") == {
        "maze": in_tags(MazeEnvironment),
        "taxi": in_tags(TaxiEnvironment),
    }
    run = RunConfig.read(
        {
            "environment": {"real": "shop", "model": "shop", "plain": "sql"},
            "simulation": {**MODEL, "worlds": ["model"]},
            "control": {**CONTROL, "worlds": ["plain"]},
            "verify": {**VERIFY, "worlds": ["real"]},
            "episode_reward": {"rescale": True},
        }
    )
    worlds = run.classes()
    assert [name for name, world in worlds.items() if options_of(world, Verified) is not None] == ["real"]
    assert [name for name, world in worlds.items() if is_simulated(world)] == ["model"]
    assert [name for name, world in worlds.items() if config_of(world) is not None] == ["plain"]
    assert run.class_of({"environment": "plain"}) is worlds["plain"]
    assert not run.simulates_all
    assert RunConfig.read({"environment": "grid", "simulation": MODEL}).simulates_all
