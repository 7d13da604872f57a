"""The table of registered environments says of each what its module says, and importing the table imports none of them."""

import importlib
import inspect
import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from wm_plugin.errors import UserError
from wm_plugin.registry import import_object
from wm_plugin.worlds import ENVIRONMENTS, SPECS, EnvironmentSpec
from wm_plugin.worlds.kit.protocol import tool_names
from wm_plugin.worlds.specs import by_name
from wm_plugin.worlds.worlds import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "wm_plugin" / "worlds"
# Modules of the room that hold no environment of their own.
SHARED = {
    "agents",
    "check",
    "from_file",
    "kit",
    "memory",
    "metrics",
    "mixture",
    "scenario_replies",
    "scenarios",
    "simulated_world",
    "specs",
    "worlds",
    "wrappers",
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_spec_says_what_the_module_says(spec: EnvironmentSpec) -> None:
    environment = import_object(spec.path, field=spec.name)
    module = importlib.import_module(environment.__module__)
    assert f"{environment.__module__}:{environment.__qualname__}" == spec.path
    assert spec.levels == tuple(module.LEVELS)
    assert spec.tools == tuple(tool_names(environment))
    assert spec.irreversible == environment.irreversible
    for path in (spec.dataset_rows, spec.expert, spec.wanderer):
        assert path is not None
        assert callable(import_object(path, field=spec.name))
    assert spec.summary
    assert "\n" not in spec.summary


def test_every_module_of_the_room_is_registered_or_shared() -> None:
    modules = {path.stem for path in FOLDER.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    modules -= {"__init__"}
    assert modules == set(SPECS) | SHARED
    assert {spec.path.partition(":")[0] for spec in SPECS.values()} == {f"wm_plugin.worlds.{name}" for name in SPECS}


def test_the_registry_has_the_paths_of_the_specs() -> None:
    assert list(ENVIRONMENTS) == sorted(SPECS)
    assert ENVIRONMENTS.get("grid") is import_object(SPECS["grid"].path, field="")


def test_two_environments_of_one_name_are_refused() -> None:
    one, other = EnvironmentSpec("one", "a:One", "One."), EnvironmentSpec("one", "b:Other", "Another.")
    assert by_name([one]) == {"one": one}
    with pytest.raises(UserError, match="environment 'one' is registered twice: a:One and b:Other"):
        by_name([one, other])


def test_what_an_environment_needs_is_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {spec.needs.extra for spec in SPECS.values() if spec.needs.extra} <= set(extras)


@pytest.mark.parametrize(
    "code", ["import wm_plugin.worlds.worlds", "from wm_plugin.cli.main import main; main(['env', 'list'])"]
)
def test_the_table_and_the_list_import_no_environment(code: str) -> None:
    heavy = [spec.path.partition(":")[0] for spec in SPECS.values()] + ["torch", "transformers", "numpy"]
    code += f"; import sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_worlds_that_tell_seen_from_unseen_are_these() -> None:
    """The others make all rows in one way, and their held-out rows are neither; forth holds a level out."""
    assert {name for name, spec in SPECS.items() if spec.splits} == {
        "alfworld",
        "deepdive",
        "docs",
        "scienceworld",
        "shop",
    }


SLOW = {"docs": pytest.mark.slow}  # reads the documentation of a package for seconds


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, id=name, marks=SLOW.get(name, ())) for name, spec in SPECS.items()]
)
def test_a_world_with_splits_has_rows_of_each_and_shares_none(spec: EnvironmentSpec) -> None:
    world = load(spec.name)
    assert spec.splits == tuple(getattr(world.module, "SPLITS", ()))
    assert bool(spec.splits) == ("split" in inspect.signature(world.module.dataset_rows).parameters)
    if not spec.splits:
        with pytest.raises(UserError, match=f"--split: {spec.name} has no split 'seen'; --held-out has the rows"):
            world.rows(1, split="seen")
        return
    if spec.name == "docs" and world.missing():
        pytest.skip(" and ".join(world.missing()))
    rows = {split: world.some_rows(64, seed=3, split=split) for split in spec.splits}
    keys = {split: {json.dumps(row, sort_keys=True) for row in some} for split, some in rows.items()}
    assert all(len(some) >= 16 for some in keys.values())
    for one, other in itertools.combinations(keys.values(), 2):
        assert not one & other
    assert world.rows(16, seed=3) == world.rows(16, seed=3, split="train")
    assert world.rows(16, seed=3, held_out=True) == world.rows(16, seed=3, split="unseen")
    with pytest.raises(UserError, match="leave held_out out"):
        world.rows(1, held_out=True, split="seen")
    with pytest.raises(UserError, match="has no split 'valid'; there is 'seen', 'train', 'unseen'"):
        world.rows(1, split="valid")
    with pytest.raises(UserError, match="has no split 7"):
        world.module.dataset_rows(1, split=7)
