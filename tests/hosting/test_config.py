"""A run's config, once for both hosts: what does not fit together, and how environments are dressed."""

import json

import pytest

from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.config import RunConfig, check_tool_names, read_field
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
    one = {"environment": {"real": "grid"}, "simulation": {**MODEL, "worlds": ["real"]}}
    assert RunConfig.read(one).simulates_all
    assert not RunConfig.read({"environment": "grid"}).simulates_all


class Described:
    """Tools of a file, which only a world model can answer."""

    _wm_file = "tools.json"

    def reset(self): ...

    def look(self) -> str: ...


def test_tools_without_a_world_need_a_world_model():
    worlds = {"described": f"{__name__}:Described", "real": "grid"}
    for control in ({}, {"control": {**CONTROL, "worlds": ["real"]}}):
        with pytest.raises(UserError, match=r"tools\.json has tools and no world behind them; add simulation"):
            RunConfig.read({"environment": worlds, **control}).classes()
        run = RunConfig.read({"environment": worlds, "simulation": {**MODEL, "worlds": ["described"]}, **control})
        assert is_simulated(run.classes()["described"])


def test_without_an_environment_the_hosts_tools_are_its_own():
    run = RunConfig.read({})
    assert (run.classes(), run.factory, run.class_of({"environment": "grid"}), run.named) == ({}, None, None, {})


def test_a_rows_class_and_columns():
    one, several = RunConfig.read({"environment": "grid"}), RunConfig.read({"environment": {"a": "grid", "b": "maze"}})
    assert one.class_of({}) is one.class_of({"environment": "b"}) is GridEnvironment
    assert one.columns_of({"board": None, "environment": "b"}) == {"board": None, "environment": "b"}
    assert several.class_of({"environment": "b"}) is MazeEnvironment
    assert several.columns_of({"board": "x", "seed": None, "environment": "b"}) == {"board": "x"}
    assert one.columns_of(None) == several.columns_of(None) == {}
    with pytest.raises(UserError, match="a row's columns are 'b'; write a mapping"):
        one.class_of("b")
    for name, shown in ((None, "None"), ("c", "'c'"), (["a"], r"\['a'\]")):
        with pytest.raises(UserError, match=f"column `environment` is {shown}, and environment has 'a', 'b'"):
            several.class_of({"environment": name})


def test_a_runs_objectives():
    assert RunConfig.read({"objective": EchoConfig(0.5)}).objectives == {"": EchoConfig(0.5)}
    named = '{"tools": {"coeff": 0.1}}'
    assert RunConfig.read({"world_model": named}).objectives == {"tools": EchoConfig(0.1)}
    with pytest.raises(UserError, match="world_model names the run's objectives; write coeff, guard in one of them"):
        RunConfig.read({"world_model": named, "objective": EchoConfig(0.5, guard=True)})
    with pytest.raises(UserError, match="world_model is not JSON: "):
        RunConfig.read({"world_model": "{tools"})


def test_a_single_field_is_read_as_in_a_run():
    budget = TurnBudget(start=3)
    for value in ({"start": 3}, '{"start": 3}', budget):
        assert read_field("turn_budget", value) == budget
    assert read_field("environment", '{"a": "grid"}') == {"a": "grid"}
    for name in RunConfig.model_fields:
        assert read_field(name, None) is read_field(name, "null") is None or name in (
            "objective",
            "protocol",
            "look_ahead",
            "max_lost",
        )
    with pytest.raises(UserError, match=r"environment is not JSON \("):
        read_field("environment", "{grid")
    with pytest.raises(UserError, match="look_ahead is 3; write a mapping"):
        read_field("look_ahead", "3")


def test_tools_of_an_objective_are_known():
    check_tool_names(None, [], "wm.tools")
    check_tool_names(["move"], iter(["look", "move"]), "wm.tools")
    with pytest.raises(UserError, match="wm.tools: there is no tool 'mvoe'; did you mean 'move'"):
        check_tool_names(["move", "mvoe"], ["move"], "wm.tools")
