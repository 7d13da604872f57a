"""What is drawn for an episode: as often as asked for, the same everywhere, and told to the world model in the same words."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wm_plugin.hosting.figures import summary
from wm_plugin.worlds.wrappers.control import PERTURBATIONS, ControlConfig, ControlEpisode

FALSE_ALARM = 1e-9  # of a test of a share
ERRORS = {"perturbations": [{"name": "error", "rate": 0.3}, {"name": "latency", "rate": 0.5}], "seed": 3}


def control(*entries, **settings):
    return ControlConfig.read({"perturbations": list(entries), **settings}, "control")


def interval(share: float, draws: int) -> tuple[float, float]:
    """The counts that a binomial number falls outside of with a chance of at most `FALSE_ALARM` (Hoeffding's bound)."""
    width = math.sqrt(draws * math.log(2 / FALSE_ALARM) / 2)
    return share * draws - width, share * draws + width


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
def test_the_share_of_perturbed_calls(rate):
    """Of 20,000 calls a rate that is wrong by 0.04 would be seen; calls of one turn and place are as good as others."""
    config, total = control({"name": "error", "rate": rate}, {"name": "latency", "rate": rate}), 0
    counts = {"error": 0, "latency": 0, "second call": 0, "turn 5": 0}
    for task in range(400):
        episode = ControlEpisode(config, f"task {task}")
        for turn in range(1, 26):
            episode.begin_turn()
            for call in range(2):
                names = episode.plan("search").names
                counts["error"] += "error" in names
                counts["latency"] += "latency" in names
                counts["second call"] += call == 1 and "error" in names
                counts["turn 5"] += turn == 5 and "error" in names
                total += 1
        assert episode.figures["control/calls"] == 50
    # a call that fails has no latency
    for name, share, draws in (
        ("error", rate, total),
        ("latency", rate * (1 - rate), total),
        ("second call", rate, total // 2),
        ("turn 5", rate, 800),
    ):
        low, high = interval(share, draws)
        assert low <= counts[name] <= high, (name, counts[name], low, high)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
def test_the_share_of_episodes(rate):
    config = control({"name": "style", "rate": rate})
    count = sum(bool(ControlEpisode(config, f"task {task}").instruction) for task in range(5000))
    low, high = interval(rate, 5000)
    assert low <= count <= high


def drawn(tasks: int = 20) -> list:
    config = ControlConfig.read(ERRORS, "control")
    rows = []
    for task in range(tasks):
        episode = ControlEpisode(config, f"task {task}")
        rows.append([list(episode.plan("f").names) for _ in range(5)] + [episode.plan("f").instruction])
    return rows


def test_another_process_draws_the_same():
    here = str(Path(__file__).parent)
    code = f"import sys, json; sys.path.insert(0, {here!r}); from test_episode import drawn; print(json.dumps(drawn()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == drawn()


def test_draws_depend_on_the_place_and_on_nothing_else():
    config = ControlConfig.read(ERRORS, "control")

    def names(task, tools):
        episode = ControlEpisode(config, task)
        return [episode.plan(tool).names for tool in tools]

    assert names("a", ["f"] * 30) == names("a", ["g"] * 30)  # whatever was called before
    assert names("a", ["f"] * 30) != names("b", ["f"] * 30)
    other = ControlEpisode(ControlConfig.read({**ERRORS, "seed": 4}, "control"), "a")
    assert names("a", ["f"] * 30) != [other.plan("f").names for _ in range(30)]


def test_what_is_perturbed_at_a_lower_strength_is_at_a_higher_one():
    config = control({"name": "error", "rate": 0.8})
    before: set[int] = set()
    for strength in (0.0, 0.25, 0.5, 1.0):
        episode = ControlEpisode(config, "t", strength=strength)
        now = {turn for turn in range(200) if episode.plan("f").names}
        assert before <= now
        before = now
        assert bool(episode.instruction) is (strength > 0)
    assert 120 < len(before) < 195


def test_without_turns_each_call_is_one():
    episode = ControlEpisode(control({"name": "error", "turns": 2}), "t")
    assert [bool(episode.plan("f").names) for _ in range(4)] == [False, True, False, False]


def test_figures_are_shares_of_all_calls():
    """Of two episodes, one of 3 calls and one of 1, the share is that of 4 calls."""
    episodes = [
        {"control/calls": 3.0, "control/error": 1.0, "success": 1.0},
        {"control/calls": 1.0, "control/error": 1.0, "success": 0.0},
        {"success": 1.0},  # of a world without control
    ]
    figures = summary(episodes)
    assert (figures["wm/env/control/error"], figures["wm/env/control/calls"]) == (0.5, 2.0)
    assert summary(episodes[2:]) == {"wm/env/success": 1.0}


INSTRUCTED = {
    "error": {"rate": 0.1, "tools": ["search"]},
    "partial": {"rate": 0.25},
    "paginate": {"tools": ["search"], "size": 3},
    "withhold": {"column": "answer", "query": "question"},
    "tease": {"texts": ["Paris"]},
    "latency": {"turns": [2]},
    "style": {"form": "fenced"},
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_an_instruction_for_each(name):
    columns = {"answer": ["Paris", 7], "question": "What is the capital?"}
    episode = ControlEpisode(control({"name": name, **INSTRUCTED[name]}), "t", columns=columns)
    assert episode.instruction.strip()
    for field in INSTRUCTED[name].get("tools", ()):
        assert field in episode.instruction
    if name == "withhold":
        assert "What is the capital?" in episode.instruction
        assert "Paris; 7" in episode.instruction


def test_an_episode_without_an_answer_withholds_nothing():
    assert not ControlEpisode(
        control({"name": "withhold", "column": "answer"}), "t", columns={"answer": ""}
    ).instruction
