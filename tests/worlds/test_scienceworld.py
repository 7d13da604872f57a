import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from wm_plugin.errors import UserError
from wm_plugin.worlds import scienceworld
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.scienceworld import LEVELS, TASKS, ScienceworldEnvironment

pytest.importorskip("scienceworld")
# what starts a virtual machine
java = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs Java: apt-get install default-jre-headless"),
]
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "scienceworld_replay.json"
ROW = {"task": "find-plant", "variation": 0}

pytestmark = pytest.mark.slow  # seconds an episode


def needs_java(function):
    for mark in java:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def world() -> Iterator[ScienceworldEnvironment]:
    environment = ScienceworldEnvironment()
    yield environment
    environment._process.close()


def test_the_tasks_are_those_that_were_found_to_replay() -> None:
    results = json.loads(RESULT.read_text())
    replaying = {task: tuple(one["variations"].values()) for task, one in results.items() if one["replays"]}
    assert replaying == TASKS
    assert all(one["contiguous"] for one in results.values())
    assert sorted([*LEVELS["standard"], *LEVELS["hard"]]) == sorted(TASKS)


def test_rows_are_split_as_the_tasks_are() -> None:
    for level in LEVELS:
        parts = []
        for held_out in (False, True):
            count = sum(TASKS[task][2 if held_out else 0] for task in LEVELS[level])
            rows = scienceworld.dataset_rows(count, seed=1, held_out=held_out, level=level)
            parts.append({(row["task"], row["variation"]) for row in rows})
            assert len(parts[-1]) == count
            with pytest.raises(
                UserError, match=f"has {count} .* rows of the level '{level}'; write a count up to that"
            ):
                scienceworld.dataset_rows(count + 1, held_out=held_out, level=level)
        assert not parts[0] & parts[1]
        for task, variation in parts[1]:
            assert sum(TASKS[task][:2]) <= variation < sum(TASKS[task])
    assert scienceworld.dataset_rows(5, seed=3) == scienceworld.dataset_rows(5, seed=3)
    assert scienceworld.dataset_rows(5, seed=3) != scienceworld.dataset_rows(5, seed=4)


def test_java_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UserError, match="ScienceWorld needs Java, and there is none on the path: install a JRE"):
        ScienceworldEnvironment().reset(**ROW)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"none in {tmp_path}/bin"):
        scienceworld.find_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    assert scienceworld.find_java() == str(tmp_path / "bin" / "java")


@needs_java
def test_the_splits_are_the_simulators_own(world: ScienceworldEnvironment) -> None:
    assert world._process.call("splits", ["find-plant", "boil"]) == [list(TASKS["find-plant"]), list(TASKS["boil"])]


@pytest.mark.host
@needs_java
def test_the_gold_path_scores_all_points(world: ScienceworldEnvironment) -> None:
    played = play(world, ROW, scripted(scienceworld.expert()), max_turns=scienceworld.MAX_TURNS)
    assert (played.success, played.reward) == (True, 1.0)
    assert played.metadata["figures"]["invalid"] == 0
    assert len(played.context.initial_state) < 1500
    assert "Your task is to" in played.context.initial_state


@needs_java
def test_what_counts_as_effective_and_invalid(world: ScienceworldEnvironment) -> None:
    world.reset(**ROW)
    for command in ("look around", "inventory", "task"):
        world.act(command)
    assert (world.metrics["effective"], world.metrics["invalid"]) == (0, 0)
    for command in ("fly", "open nothing", "go", "teleport to kitchen", "\0"):
        world.act(command)
    assert world.metrics == {"actions": 8, "effective": 0, "invalid": 5, "lost": 0}
    choice = scienceworld.expert()(world)
    assert choice is None or choice[0] == "act"


@needs_java
def test_focusing_on_the_wrong_thing_fails_the_task(world: ScienceworldEnvironment) -> None:
    world.reset(**ROW)
    text = world.act("focus on agent")
    assert text.endswith("The episode is over.")
    assert (world.over, world.success, world.get_reward()) == (True, False, 0.0)


@needs_java
def test_an_episode_is_the_same_again_and_in_a_fresh_process(world: ScienceworldEnvironment) -> None:
    # the house's art studio has a set of three cups, whose order changes without the fixed hash
    row = {"task": "chemistry-mix-paint-secondary-color", "variation": 0}
    world.reset(**row)
    commands = ["look around", *world._ask("plan")[:8], "open cupboard", "fly"]
    world.reset(**ROW)
    world.act("wait")
    texts = [world.reset(**row), *(world.act(command) for command in commands if not world.over)]
    fresh = ScienceworldEnvironment()
    assert [fresh.reset(**row), *(fresh.act(command) for command in commands if not fresh.over)] == texts
    fresh._process.close()


@needs_java
def test_a_killed_virtual_machine_costs_its_episode_and_is_not_left_behind(world: ScienceworldEnvironment) -> None:
    world.reset(**ROW)
    machine = world._process.call("machine")
    os.kill(machine, 9)
    assert world.act("look around").startswith("The world was lost (")
    assert (world.over, world.metrics["lost"], world.get_reward()) == (True, 1, 0.0)
    assert "Your task is to" in world.reset(**ROW)
    machine = world._process.call("machine")
    world._process.close()
    assert not Path(f"/proc/{machine}").exists()  # ended, and reaped
