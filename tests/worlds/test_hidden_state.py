"""The hidden state of worlds with an engine: what facts become, by hand, and the engines themselves where they are."""

import shutil

import pytest

from wm_plugin.worlds.alfworld import AlfworldEnvironment, places
from wm_plugin.worlds.scienceworld import ROOMS, ScienceworldEnvironment
from wm_plugin.worlds.textworld import in_words


def test_places_of_alfworld() -> None:
    facts = [
        ("receptacletype", ["drawer 10", "DrawerType"]),
        ("receptacletype", ["drawer 2", "DrawerType"]),
        ("receptacletype", ["bed 1", "BedType"]),
        ("receptacletype", ["shelf 1", "ShelfType"]),
        ("openable", ["drawer 2"]),
        ("openable", ["drawer 10"]),
        ("opened", ["drawer 10"]),
        ("inreceptacle", ["mug 11", "drawer 2"]),
        ("inreceptacle", ["mug 2", "drawer 2"]),
        ("inreceptacle", ["pillow 1", "bed 1"]),
        ("objecttype", ["mug 2", "MugType"]),
    ]
    assert places(facts).split("\n") == [
        "bed 1: pillow 1",
        "drawer 2 (closed): mug 2, mug 11",
        "drawer 10 (open): nothing",
        "shelf 1: nothing",
    ]


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (("at", ["chest", "attic"]), "chest is in attic"),
        (("in", ["key", "chest"]), "key is in chest"),
        (("closed", ["chest"]), "chest is closed"),
        (("north_of", ["attic", "cellar"]), "attic is north of cellar"),
        (("match", ["key", "gate"]), "key fits gate"),
        (("link", ["cellar", "gate", "attic"]), "gate is between attic and cellar"),
        (("needs_cooking", ["leg"]), "leg needs cooking"),
        (("some_more", ["a", "b", "c"]), "some more: a, b, c"),
        (("won", []), "is won"),
    ],
)
def test_facts_of_textworld(fact: tuple[str, list[str]], words: str) -> None:
    assert in_words(*fact) == words


@pytest.mark.slow
def test_the_places_of_a_game_of_alfworld() -> None:
    pytest.importorskip("alfworld")
    pytest.importorskip("fast_downward")
    world = AlfworldEnvironment()
    first = world.reset(level="standard", seed=1)
    lines = dict(line.split(": ", 1) for line in world.world_context().split("\n"))
    assert all(place.removesuffix(" (closed)") in first for place in lines)
    thing, place = next(
        (things.split(", ")[0], place.split(" (")[0]) for place, things in lines.items() if "(closed)" in place
    )
    assert thing not in first  # it is hidden
    world.act(f"go to {place}")
    assert thing in world.act(f"open {place}")
    assert world.world_context() == ""  # it is of the start
    world._process.close()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_the_rooms_of_scienceworld_and_the_episode_goes_on() -> None:
    pytest.importorskip("scienceworld")
    row = {"task": "find-plant", "variation": 0}
    asked, other = ScienceworldEnvironment(), ScienceworldEnvironment()
    assert asked.reset(**row) == other.reset(**row)
    text = asked.world_context()
    assert all(f"called the {room}" in text for room in ROOMS)
    assert "move living thing to answer box" in text
    assert asked.world_context() == text
    for command in ("look around", "open door to kitchen", "go to kitchen", "look around"):
        assert asked.act(command) == other.act(command)
    for world in (asked, other):
        world._process.close()
