import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds import alfworld
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.alfworld import AlfworldEnvironment

pytest.importorskip("alfworld")
pytest.importorskip("fast_downward")
SMALL = {"level": "standard", "seed": 1}


@pytest.fixture(scope="module")
def world() -> Iterator[AlfworldEnvironment]:
    environment = AlfworldEnvironment()
    yield environment
    environment._process.close()


@pytest.mark.parametrize("level", ["standard", "hard"])
def test_the_expert_does_the_task(world: AlfworldEnvironment, level: str) -> None:
    for row in alfworld.dataset_rows(2, seed=1, level=level):
        played = play(world, row, scripted(alfworld.expert()), max_turns=alfworld.MAX_TURNS)
        assert (played.success, played.reward) == (True, 1.0), row["seed"]
        figures = played.metadata["figures"]
        assert figures["actions"] == figures["effective"]
        assert figures["invalid"] == 0
        assert len(played.context.initial_state) < 1500 + len(alfworld.INSTRUCTION)


def kinds_of(game: dict) -> str:
    return game["grammar"].split("Your task is to: ")[1].split(".")[0]


def test_all_kinds_of_tasks_are_built_and_not_done_at_the_start() -> None:
    goals = []
    for level in ("standard", "hard"):
        goals += [kinds_of(alfworld.build(level, seed)) for seed in range(60)]
    for beginning in ("put a", "look at", "put a clean", "put a hot", "put a cool", "put two of the kind"):
        assert any(goal.startswith(beginning) for goal in goals), beginning
    assert len(set(goals)) > 60


@pytest.mark.slow
@pytest.mark.parametrize("level", ["standard", "hard"])
def test_the_planner_agrees_that_built_games_can_be_solved(world: AlfworldEnvironment, level: str) -> None:
    """Its plan, for a domain that is not ours, is never longer than ours by much, and does the task."""
    for row in alfworld.dataset_rows(3, seed=7, held_out=True, level=level):
        world.reset(**row)
        ours = world._ask("plan")
        planned = world._process.call("planned", timeout=600.0)
        assert 0 < len(planned) <= len(ours) + 2
        world.reset(**row)
        for command in planned:
            world.act(command)
        assert world.success


def test_what_counts_as_effective_and_invalid(world: AlfworldEnvironment) -> None:
    world.reset(**SMALL)
    places = [command for command in world._ask("commands") if command.startswith("go to")]
    for command in ("look", "inventory"):
        world.act(command)
    assert (world.metrics["effective"], world.metrics["invalid"]) == (0, 0)
    assert world.act(places[0].upper()).startswith("You arrive at")
    assert world.act(places[0]) == "Nothing happens."
    assert world.act("fly") == "Nothing happens."
    assert world.metrics == {"actions": 5, "effective": 1, "invalid": 2, "lost": 0}


def test_held_out_games_are_in_rooms_of_their_own() -> None:
    def walls(seed: int) -> str:  # the places of a room have their coordinates in their names
        problem = alfworld.build("standard", seed)["pddl_problem"]
        return "\n".join(line for line in problem.split("\n") if line.endswith("- receptacle"))

    train, held_out = {walls(seed) for seed in range(1, 200) if seed % 10}, {walls(seed) for seed in range(0, 400, 10)}
    assert len(train) > 30
    assert len(held_out) > 5
    assert not train & held_out
    for part in (False, True):
        assert all((row["seed"] % 10 == 0) == part for row in alfworld.dataset_rows(50, held_out=part))


def test_games_of_the_users_own(world: AlfworldEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, seed in (("train", 1), ("valid_seen", 9), ("valid_unseen", 10)):
        for number, solvable in enumerate((True, True, False)):
            folder = tmp_path / "json_2.1.1" / part / f"pick-{number}" / "trial"
            folder.mkdir(parents=True)
            game = alfworld.build("standard", seed + 10 * number) | {"solvable": solvable, "walkthrough": ["look"]}
            (folder / "game.tw-pddl").write_text(json.dumps(game))
    (tmp_path / "outside").write_text("{}")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "json_2.1.1"))
    world._process.close()  # it has the host's environment of when it started
    rows = alfworld.dataset_rows(2, level="data")
    assert {row["game"] for row in rows} == {f"train/pick-{number}/trial/game.tw-pddl" for number in (0, 1)}
    held_out = alfworld.dataset_rows(2, level="data", held_out=True)
    assert all(row["game"].startswith("valid_unseen/") for row in held_out)
    seen = alfworld.dataset_rows(2, level="data", split="seen")
    assert {row["game"].partition("/")[0] for row in seen} == {"valid_seen"}
    assert alfworld.dataset_rows(2, level="data", split="unseen") == held_out
    assert "Your task is to" in world.reset(**rows[0])
    assert world._ask("plan") == ["look"]
    with pytest.raises(UserError, match="has 2 solvable games of train; write a count up to that, not 3"):
        alfworld.dataset_rows(3, level="data")
    for game in ("../outside", "", "/etc/passwd", "nothing/game.tw-pddl"):
        with pytest.raises(UserError, match="ALFWORLD_DATA has no game"):
            world.reset(level="data", game=game)
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(UserError, match="needs the folder of its games in ALFWORLD_DATA"):
        alfworld.dataset_rows(1, level="data")
    world._process.close()
