import random
import sys
import types
from pathlib import Path
from typing import Any, Literal

import pytest

from support.environments import world
from wm_plugin.errors import MissingExtraError, UserError, install
from wm_plugin.registry import import_object
from wm_plugin.worlds import Needs
from wm_plugin.worlds.worlds import World, load, wander

pytest.importorskip("transformers")

pytestmark = pytest.mark.host


class DoorEnvironment:
    """A door. It has two sides."""

    def __init__(self) -> None:
        self.turns, self.over, self.success = 0, True, False

    def reset(self, seed: int = 0, **_: Any) -> str:
        self.turns, self.over, self.success = 0, False, False
        return f"A door with the number {seed}."

    def push(self, side: Literal["left", "right"], strength: int, gently: bool, words: list[str]) -> str:
        """Push the door.

        Args:
            side: Which one.
            strength: How much.
            gently: And how.
            words: What to say.

        Returns:
            What happens.
        """
        return f"{side} {strength} {gently} {words}"

    def get_reward(self) -> float:
        return 0.0


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> World:
    module = types.ModuleType("door_world")
    module.DoorEnvironment = DoorEnvironment  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "door_world", module)
    monkeypatch.setattr(DoorEnvironment, "__module__", "door_world")
    return load("door_world:DoorEnvironment")


def test_one_class_is_a_world(door: World) -> None:
    assert door.summary == "A door"
    assert (door.levels, door.irreversible, door.missing(), door.expert()) == ((), (), [], None)
    assert door.spec.tools == ("push",)
    rows = door.rows(50, seed=1)
    assert rows == door.rows(50, seed=1) != door.rows(50, seed=2)
    assert door.make().reset(**rows[0]) == f"A door with the number {rows[0]['seed']}."
    held_out = door.rows(50, seed=1, held_out=True)
    assert {row["seed"] % 10 == 0 for row in rows} == {False}
    assert {row["seed"] % 10 == 0 for row in held_out} == {True}
    assert rows[0]["prompt"] == [{"role": "user", "content": ""}]


def test_a_wanderer_fills_in_arguments_by_their_types(door: World) -> None:
    choose, sides = wander(random.Random(0)), []
    for _ in range(50):
        tool, arguments = choose(door.make()) or ("", {})
        assert tool == "push"
        assert isinstance(arguments["strength"], int)
        assert isinstance(arguments["gently"], bool)
        assert all(isinstance(word, str) for word in arguments["words"])
        sides.append(arguments["side"])
    assert set(sides) == {"left", "right"}


class LockEnvironment:
    def turn(self, key: str, times: int, names: list[str]) -> str:
        """Turn a key.

        Args:
            key: The key, brass or iron.
            times: From 2 to 4.
            names: One of rose, lily.

        Returns:
            What happens.
        """
        return ""


def test_a_wanderer_takes_the_values_that_a_docstring_names() -> None:
    choose = wander(random.Random(0))
    drawn = [(choose(LockEnvironment()) or ("", {}))[1] for _ in range(60)]
    assert {one["key"] for one in drawn} == {"brass", "iron"}
    assert {one["times"] for one in drawn} == {2, 3, 4}
    assert {name for one in drawn for name in one["names"]} == {"rose", "lily"}


# The least share of actions that are valid, of 12 episodes; by types alone it was 0 in each, but .2 in dialogue and wordle.
VALID = {"grid": 1.0, "maze": 1.0, "taxi": 0.5, "sokoban": 0.5, "dialogue": 0.25, "wordle": 0.4}


@pytest.mark.parametrize("name", VALID)
def test_a_wanderer_acts_in_our_worlds(name: str) -> None:
    found, actions, invalid = world(name), 0, 0
    environment = found.make()
    for number, row in enumerate(found.some_rows(12, seed=1)):
        choose = wander(random.Random(number))
        environment.reset(**row)
        while not environment.over and environment.turns < 12 and (call := choose(environment)):
            getattr(environment, call[0])(**call[1])
        actions += environment.metrics["actions"]
        invalid += environment.metrics["invalid"]
    assert 1 - invalid / actions >= VALID[name]


def test_functions_beside_the_class_are_used(door: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dataset_rows(count: int, seed: int = 0, held_out: bool = False) -> list[dict[str, Any]]:
        return [{"prompt": [], "seed": seed, "held_out": held_out}] * count

    monkeypatch.setattr(door.module, "dataset_rows", dataset_rows, raising=False)
    monkeypatch.setattr(door.module, "expert", lambda: lambda _: None, raising=False)
    monkeypatch.setattr(door.module, "wanderer", lambda rng: lambda _: ("push", {"side": "left"}), raising=False)
    monkeypatch.setattr(door.module, "LEVELS", {"one": 1, "two": 2}, raising=False)
    world = load("door_world:DoorEnvironment")
    assert world.rows(2, 5, True) == [{"prompt": [], "seed": 5, "held_out": True}] * 2
    assert (world.expert() or print)(None) is None
    assert world.wanderer(random.Random(0))(None) == ("push", {"side": "left"})
    assert world.levels == ("one", "two")


def test_what_stands_beside_the_class_is_taken_from_the_module_that_defines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "reexporting_package"
    package.mkdir()
    (package / "__init__.py").write_text("from reexporting_package.worlds import MyEnvironment\n")
    (package / "worlds.py").write_text(
        "LEVELS = ('easy', 'steep')\n"
        "class MyEnvironment:\n"
        "    irreversible = ('jump',)\n"
        "    def reset(self, **_): return 'A cliff.'\n"
        "    def jump(self) -> str: return 'Splash.'\n"
        "def dataset_rows(count, seed=0, held_out=False, level='easy'):\n"
        "    for _ in range(count): yield {'prompt': [], 'level': level}\n"
        "def expert(): return lambda environment: ('jump', {})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in ("reexporting_package:MyEnvironment", "reexporting_package.MyEnvironment"):
        world = load(path)
        assert world.name == path
        assert (world.levels, world.spec.tools, world.irreversible) == (("easy", "steep"), ("jump",), ("jump",))
        assert world.rows(1, level="steep") == [{"prompt": [], "level": "steep"}]
        assert (world.expert() or print)(world.make()) == ("jump", {})
        assert world.spec.wanderer is None
        assert world.module.__name__ == "reexporting_package.worlds"


def test_a_class_that_needs_columns_needs_rows(door: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(self: Any, board: str) -> str:
        return board

    monkeypatch.setattr(DoorEnvironment, "reset", reset)
    with pytest.raises(
        UserError, match="no column 'board'.*write dataset_rows\\(count, seed, held_out\\) beside the class"
    ):
        door.rows(1)


def test_rows_that_are_made_of_other_arguments_are_named(door: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door.module, "dataset_rows", lambda count: [{"prompt": []}] * count, raising=False)
    world = load("door_world:DoorEnvironment")
    with pytest.raises(UserError, match="takes other arguments .*; write dataset_rows\\(count, seed, held_out\\)"):
        world.rows(1)


def test_a_class_that_cannot_be_made_is_named(door: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DoorEnvironment, "__init__", lambda self, size: None)
    with pytest.raises(UserError, match="door_world:DoorEnvironment: hosts make an environment without arguments"):
        door.make()


def test_fewer_rows_where_there_are_not_so_many() -> None:
    pytest.importorskip("gymnasium")
    rows = load("taxi").some_rows(100, held_out=True)
    assert len(rows) == 50
    assert len({row["state"] for row in rows}) == 50
    assert len(load("taxi").some_rows(60, held_out=True)) == 60


def test_what_is_missing_is_said_with_the_way_to_get_it() -> None:
    assert Needs("maze", ("json", "no_such_module", "nor_this"), ("no-such-program",)).missing() == [
        f"no_such_module and nor_this ({install('maze')})",
        "the program no-such-program",
    ]
    assert Needs(None, ("json.no_such",)).missing() == [
        "json.no_such (no extra brings it: docs/worlds.md says how to get it)"
    ]


EXTRAS = {
    "maze": ("mazelib.generate.Prims", ["maze:_mazelib"], {"board": "###\n#AG\n###"}, "###\n#.P\n###!"),
    "sokoban": ("reasoning_gym.games.contrib.sokoban.src.generator", [], {"board": "PBG"}, ".P*!"),
    "taxi": ("gymnasium.envs.toy_text.taxi", ["taxi:_taxi", "taxi:start_states"], None, ""),
    "docs": ("bm25s", ["docs.pages:index"], None, ""),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_without_its_package_a_world_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package, caches, row, text = EXTRAS[name]
    world = load(name)
    row = row or world.rows(1)[0]
    monkeypatch.setitem(sys.modules, package, None)
    for path in caches:
        import_object(f"wm_plugin.worlds.{path}", field="").cache_clear()
    environment = world.make()
    if text:  # only making levels needs the package
        environment.reset(**row)
        assert getattr(environment, world.spec.tools[0])("push right" if name == "sokoban" else "R") == text
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[{'search' if name == 'docs' else name}\]"):
        world.rows(1) if text else environment.reset(**row)
    for path in caches:
        import_object(f"wm_plugin.worlds.{path}", field="").cache_clear()
