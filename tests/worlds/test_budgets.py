"""Prompts name the number of turns that the episode has, whatever it is."""

import pytest

from support.environments import OWN, world
from wm_plugin.cli.main import main
from wm_plugin.data import read
from wm_plugin.worlds import alfworld
from wm_plugin.worlds.worlds import load

NAMED = [name for name in OWN if name != "grid"]  # whose prompt is the board
WITHOUT_ENGINE = {"alfworld", "textworld", "scienceworld"}  # rows of theirs need nothing


def text(row):
    return row["prompt"][0]["content"]


@pytest.mark.parametrize("name", NAMED)
def test_the_prompt_says_how_many_turns_the_episode_has(name):
    of = load(name) if name in WITHOUT_ENGINE else world(name)
    (usual,), (short,) = of.rows(1, seed=3), of.rows(1, seed=3, max_turns=3)
    assert short.pop("max_turns") == 3
    assert "at most 3 " in text(short)
    assert "at most 3 " not in text(usual)
    assert short | {"prompt": usual["prompt"]} == usual  # the same task
    assert "{" not in text(usual).partition("\n")[0]
    assert of.rows(1, seed=3, max_turns=10**6) == [usual]  # never more than the world has itself
    if name not in WITHOUT_ENGINE:
        environment = of.make()
        environment.reset(**{key: value for key, value in short.items() if key != "prompt"}, max_turns=3)
        assert environment.max_turns == 3


@pytest.mark.host
def test_rollouts_of_fewer_turns_say_so(tmp_path):
    command = ["env", "rollout", "sql", "--policy", "random", "--count", "2", "--max-turns", "4"]
    assert main([*command, "--out", str(tmp_path / "x.jsonl")]) == 0
    for played in read(tmp_path / "x.jsonl"):
        assert "database with at most 4 tool calls." in played.context.initial_state
        assert len(played.turns) <= 4


class Household(alfworld.AlfworldEnvironment):
    """Without its engine."""

    def _start(self, limit, *game):
        self.max_turns = limit
        return "You are in the middle of a room."


@pytest.mark.parametrize("think", [True, False])
def test_alfworld_can_ask_for_reasoning_before_each_command(think):
    (row,) = alfworld.dataset_rows(1, max_turns=15, think=think)
    assert "at most 15 commands. You carry one" in text(row)
    environment = Household()
    first = environment.reset(**{name: value for name, value in row.items() if name != "prompt"})
    assert environment.max_turns == 15
    assert first.endswith(alfworld.THINK) == think
    assert environment.reset("standard", think="true").endswith(alfworld.THINK)  # of --column think=true
