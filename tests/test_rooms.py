"""The rooms of the package: which may use which, what each offers, and that documented names exist."""

import ast
import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support.patterns import trees
from support.rooms import ROOMS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "wm_plugin"

# Neither host's adapter uses the other's.
APART = {("verl", "trl")}
# Rooms whose `__init__` offers nothing: their modules are imported by name.
WITHOUT_NAMES = {"cli"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from wm_plugin import x` and `from wm_plugin.x import y` both name what they use
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "wm_plugin"}


def test_every_room_is_listed():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(ROOMS)  # the start of the command is no room


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_only_those_below_it(room):
    below = {*ROOMS[: ROOMS.index(room) + 1]} - {other for one, other in APART if one == room}
    files = [PACKAGE / f"{room}.py"] if (PACKAGE / f"{room}.py").exists() else sorted((PACKAGE / room).rglob("*.py"))
    for path in files:
        upwards = {module for module in imports(path) if room_of(module) in ROOMS and room_of(module) not in below}
        assert not upwards, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upwards))}, which is above {room}"


def of_host(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a test that imports `name`."""
    hosts = ("wm_plugin.trl", "wm_plugin.verl", "wm_plugin.lab.tiny", "wm_plugin.recipes.verl.ray_data")
    return [pytest.mark.host] if name.startswith(hosts) else []


def public_packages() -> list[Any]:
    rooms = [room for room in ROOMS if (PACKAGE / room / "__init__.py").exists() and room not in WITHOUT_NAMES]
    return [pytest.param(room, marks=of_host(f"wm_plugin.{room}")) for room in rooms]


@pytest.mark.parametrize("room", public_packages())
def test_what_a_package_offers_is_closed(room):
    """`__all__` names what is imported into `__init__`, and nothing else is there."""
    if room in ("trl", "verl"):
        try:
            metadata.version(room)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{room} is not installed")
    module = importlib.import_module(f"wm_plugin.{room}")
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name), f"wm_plugin.{room} has no {name}"
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    public = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"wm_plugin.{room}.")
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }
    assert public <= {*module.__all__}


# What an adapter imports of ours before a row needs more: modules, and their lines.
MOST_MODULES, MOST_LINES = 60, 9000
ADAPTERS = ("trl.trainer", "trl.async_trainer", "verl.trainer", "verl.agent_loop", "verl.worker", "verl.rewards")
COUNT = """
import importlib, sys
importlib.import_module(sys.argv[1])
ours = [one.__file__ for name, one in sys.modules.items() if name.split(".")[0] == "wm_plugin" and one.__file__]
print(*ours, sep="\\n", file=sys.stderr)
"""


@pytest.mark.host
@pytest.mark.parametrize("module", ADAPTERS)
def test_an_adapter_imports_neither_worlds_nor_the_lab(module):
    pytest.importorskip(module.partition(".")[0])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT, f"wm_plugin.{module}"], capture_output=True, text=True, check=True
    )
    files = [Path(line) for line in done.stderr.splitlines() if line.startswith(str(PACKAGE))]
    rooms = {path.relative_to(PACKAGE).parts[0] for path in files}
    assert "tokens" in rooms
    assert not rooms & {"worlds", "lab", "cli"}
    assert len(files) <= MOST_MODULES
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES


DOTTED = re.compile(r"\bwm_plugin(?:\.[a-z_]\w*)+(?:[:.][A-Za-z_]\w*)?")
TEXTS = ["README.md", "CONTRIBUTING.md", "docs/*.md", "recipes/**/*.yaml", "recipes/**/*.sh", "recipes/**/*.py"]


def documented_names() -> list[Any]:
    names: set[str] = set()
    for pattern in TEXTS:
        for path in ROOT.glob(pattern):
            names |= {match.rstrip(".") for match in DOTTED.findall(path.read_text())}
    return [pytest.param(name, marks=of_host(name)) for name in sorted(names)]


@pytest.mark.parametrize("name", documented_names())
def test_a_documented_name_exists(name):
    for host in ("trl", "verl"):
        if name.startswith((f"wm_plugin.{host}", f"wm_plugin.recipes.{host}.ray_data")):
            pytest.importorskip(host)
    path, _, member = name.partition(":")
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            target = importlib.import_module(".".join(parts[:length]))
            break
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("wm_plugin"):
                pytest.skip(f"{name} needs {error.name}")
    for part in [*parts[length:], *filter(None, [member])]:
        assert hasattr(target, part), f"{name}: {target} has no {part!r}"
        target = getattr(target, part)


CONTRACT = {
    "wm_plugin": ["EchoConfig"],
    "wm_plugin.objectives": ["echo_loss"],
    "wm_plugin.rewards": [
        "EmbeddingReward",
        "RougeReward",
        "ExactReward",
        "JudgeReward",
        "RubricReward",
        "RuleReward",
        "ReferenceReward",
        "TuringReward",
        "HybridReward",
        "RwmlReward",
        "rescale_by_effective_actions",
    ],
    "wm_plugin.worlds": ["ENVIRONMENTS", "SPECS", "load", "not_a_tool"],
    "wm_plugin.data": ["Trajectory", "Turn", "Transition", "read", "expand", "read_transitions"],
    "wm_plugin.trl": [
        "WorldModelGRPOTrainer",
        "WorldModelGRPOConfig",
        "WorldModelMixin",
        "WorldModelAsyncGRPOTrainer",
        "WorldModelAsyncGRPOConfig",
    ],
}


@pytest.mark.parametrize("module", [pytest.param(name, marks=of_host(name)) for name in CONTRACT])
def test_the_public_contract(module):
    if module == "wm_plugin.trl":
        pytest.importorskip("trl")
    assert set(CONTRACT[module]) <= set(importlib.import_module(module).__all__)
