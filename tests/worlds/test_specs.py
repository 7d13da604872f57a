"""The table of registered environments says of each what its module says, and importing the table imports none of them."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from wm_plugin import worlds
from wm_plugin.data.schema import Kind
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.registry import import_object
from wm_plugin.worlds import ENVIRONMENTS, SPECS, EnvironmentSpec
from wm_plugin.worlds.kit.protocol import KINDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "wm_plugin" / "worlds"
# Modules of the room that hold no environment of their own.
SHARED = {
    "agents",
    "check",
    "from_file",
    "kit",
    "mixture",
    "new",
    "observed",
    "openenv",
    "openenv_server",
    "ready",
    "scenarios",
    "served",
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


def test_load_gives_the_class() -> None:
    assert worlds.load("grid") is ENVIRONMENTS.get("grid")
    with pytest.raises(UserError, match="did you mean 'maze'"):
        worlds.load("mazes")
    assert set(KINDS) == set(get_args(Kind))
