import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from wm_plugin.worlds import textworld
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.textworld import TextworldEnvironment

pytestmark = [
    pytest.mark.slow,  # seconds an episode
    pytest.mark.skipif(find_spec("textworld") is None, reason="needs textworld"),  # whose import takes seconds
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WM_PLUGIN_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def world(cache: Path) -> Iterator[TextworldEnvironment]:
    environment = TextworldEnvironment()
    yield environment
    environment._process.close()


@pytest.mark.host
@pytest.mark.parametrize("level", ["standard", "cooking"])
def test_the_walkthrough_wins_within_the_turns(world: TextworldEnvironment, level: str) -> None:
    (row,) = textworld.dataset_rows(1, seed=1, level=level)
    played = play(world, row, scripted(textworld.expert()), max_turns=textworld.MAX_TURNS)
    assert (played.success, played.reward) == (True, 1.0)
    figures = played.metadata["figures"]
    assert (figures["invalid"], figures["lost"]) == (0, 0)
    if level == "standard":  # a quest has as many actions as the level says, and each changes a fact
        assert figures["actions"] == figures["effective"] == textworld.LEVELS[level]["quest"]
    first = played.context.initial_state
    assert len(first) < 1500
    assert "-= " in first
    assert "$$$" not in first  # the banner
    assert not any(line.strip().startswith(">") for line in first.split("\n")[1:])
    assert played.turns[-1].observations[0].text.endswith("*** The End ***\nThe task is done.")


@pytest.mark.parametrize("level", list(textworld.LEVELS))
def test_every_level_is_won_by_its_walkthrough(world: TextworldEnvironment, level: str) -> None:
    for row in textworld.dataset_rows(3, seed=2, held_out=True, level=level):
        played = play(world, row, scripted(textworld.expert()), max_turns=textworld.MAX_TURNS)
        assert played.success, row["seed"]


def test_points_are_a_share(world: TextworldEnvironment) -> None:
    (row,) = textworld.dataset_rows(1, seed=1, level="cooking")
    world.reset(**row)
    choose, rewards = textworld.expert(), []
    while (choice := choose(world)) is not None:
        world.act(**choice[1])
        rewards.append(world.get_reward())
    assert rewards == sorted(rewards)
    assert 0.0 < rewards[-2] < 1.0
    assert rewards[-1] == 1.0


def test_what_counts_as_effective_and_invalid(world: TextworldEnvironment) -> None:
    (row,) = textworld.dataset_rows(1, seed=1)
    world.reset(**row)
    for command in ("look", "inventory", "goal", "score", "wait"):
        world.act(command)
    assert (world.metrics["effective"], world.metrics["invalid"]) == (0, 0)
    for command in ("fly", "take nonsense", "open", "", "look. look", "look then look", "\0"):
        world.act(command)
    assert world.metrics["effective"] == 0
    assert world.metrics["invalid"] >= 6  # "open" alone may be completed by the game
    assert world.act("LOOK").startswith("-= ")
    world.reset(**row)
    assert world.act("take") == "What do you want to take?"  # the first command too, before which a move is counted
    assert world.metrics["invalid"] == 1


OUT_OF_WORLD = (
    "quit|q|restart|restore|save|script|transcript|unscript|verify|version|undo|again|g|oops|superbrief|notify off|y"
)
OUT_OF_WORLD += (
    "|tw-trace-actions|tw-extra-infos score|tw-print state|pronouns|actions|showverb take|purloin key|abstract x to y"
)


@pytest.mark.parametrize("command", OUT_OF_WORLD.split("|"))
def test_commands_to_the_interpreter_never_reach_it(world: TextworldEnvironment, command: str) -> None:
    """Some of them hang it for good, others write files or change the game."""
    (row,) = textworld.dataset_rows(1, seed=1)
    world.reset(**row)
    assert world.act(command) == "The game does not understand that."
    assert world.metrics == {"actions": 1, "effective": 0, "invalid": 1, "lost": 0}


def test_games_are_pinned_to_their_seed(world: TextworldEnvironment) -> None:
    """Another textworld must not change a data set silently."""
    first = world.reset(level="standard", seed=1)
    assert hashlib.sha256(first.encode()).hexdigest()[:16] == "7758387b0d21f8bb", first


def test_games_are_kept_whole(world: TextworldEnvironment, cache: Path) -> None:
    world.reset(level="standard", seed=1)
    games = list((cache / "textworld").iterdir())
    assert games
    for folder in games:
        assert sorted(path.name for path in folder.iterdir()) == ["game.json", "game.z8"]
    times = {folder: (folder / "game.z8").stat().st_mtime_ns for folder in games}
    world.reset(level="standard", seed=1)
    assert {folder: (folder / "game.z8").stat().st_mtime_ns for folder in games} == times


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WM_PLUGIN_CACHE", str(tmp_path))
    assert textworld.cache_folder() == tmp_path / "textworld"
    monkeypatch.delenv("WM_PLUGIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert textworld.cache_folder() == tmp_path / "wm_plugin" / "textworld"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert textworld.cache_folder() == Path.home() / ".cache" / "wm_plugin" / "textworld"


@pytest.mark.parametrize("level", ["standard", "cooking"])
def test_a_game_that_is_made_anew_is_the_same(
    world: TextworldEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    (row,) = textworld.dataset_rows(1, seed=1, level=level)
    world.reset(**row)
    commands = ["look", *world._ask("plan")[:-1], "goal", "fly"]
    monkeypatch.setenv("WM_PLUGIN_CACHE", str(tmp_path))
    other = TextworldEnvironment()
    try:
        assert other.reset(**row) == world.reset(**row)
        assert [other.act(command) for command in commands] == [world.act(command) for command in commands]
    finally:
        other._process.close()
