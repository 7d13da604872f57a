"""The figures of a step, against numbers by hand."""

import math
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.figures import check_lost, summary
from wm_plugin.worlds.grid import GridEnvironment, dataset_rows


def test_an_episode_has_the_figures_of_its_world_and_of_its_host():
    world = GridEnvironment()
    world.reset(**dataset_rows(1)[0])
    world.move("U")
    figures = EpisodePort(world).figures(
        ["move", "rm -rf"], budget=4, truncated=True, policy_tokens=7, environment_tokens=20
    )
    host = {
        "calls/move": 1,
        "calls/unknown": 1,
        "truncated": 1,
        "policy_tokens": 7,
        "environment_tokens": 20,
        "budget": 4,
    }
    assert {name: figures[name] for name in host} == host
    world.max_turns = 3
    assert (
        EpisodePort(world).figures([], budget=None, truncated=False, policy_tokens=0, environment_tokens=0)["budget"]
        == 3
    )
    assert (
        EpisodePort(world).figures([], budget=2, truncated=False, policy_tokens=0, environment_tokens=0)["budget"] == 2
    )
    assert (figures["turns"], figures["success"]) == (1, world.success)


def test_shares_are_of_all_actions_and_means_of_all_episodes():
    figures = summary(
        [
            {"success": 1.0, "turns": 1.0, "actions": 1.0, "effective": 1.0, "invalid": 0.0, "calls/act": 1.0},
            {"success": 0.0, "turns": 4.0, "actions": 9.0, "effective": 3.0, "invalid": 2.0, "calls/act": 4.0},
            {"success": 1.0, "turns": 3.0, "lost": 1.0},
        ]
    )
    assert figures == {
        "wm/env/success": pytest.approx(2 / 3),
        "wm/env/turns": pytest.approx(8 / 3),
        "wm/env/actions": 5.0,
        "wm/env/effective": 2.0,
        "wm/env/invalid": 1.0,
        "wm/env/effective_share": 0.4,  # 4 of 10, not the mean of 1 and 1/3
        "wm/env/invalid_share": 0.2,
        "wm/env/calls/act": 2.5,
        "wm/env/lost": 1.0,
        "wm/env/success/turns_1": 1.0,
        "wm/env/success/turns_3-4": 0.5,
        "wm/env/single_turn_success": pytest.approx(1 / 3),
        "wm/env/turns_of_successes": 2.0,
        "wm/env/actions_of_successes": 1.0,
    }


def test_the_share_of_code_that_does_not_compile_is_of_all_submissions():
    figures = summary([{"submissions": 1.0, "compile_errors": 1.0}, {"submissions": 3.0, "compile_errors": 0.0}])
    assert figures["wm/env/compile_error_share"] == 0.25  # 1 of 4, not the mean of 1 and 0
    assert "wm/env/compile_error_share" not in summary([{"submissions": 0.0, "compile_errors": 0.0}])


def test_without_actions_there_are_no_shares_and_without_episodes_no_figures():
    assert summary([]) == {}
    assert summary([{"actions": 0.0, "effective": 0.0, "invalid": 0.0}], prefix="x") == {
        "x/actions": 0.0,
        "x/effective": 0.0,
        "x/invalid": 0.0,
    }
    assert summary([{"score": math.nan}, {"score": 2.0}]) == {"wm/env/score": 2.0}


def test_a_failure_in_one_turn_is_no_success_in_one():
    figures = summary([{"success": 0.0, "turns": 1.0}, {"success": 1.0}, {"turns": 1.0}])
    assert figures == {
        "wm/env/success": 0.5,
        "wm/env/turns": 1.0,
        "wm/env/success/turns_1": 0.0,
        "wm/env/single_turn_success": 0.0,
    }


def test_perturbations_are_shares_of_all_calls_under_control():
    figures = summary([{"control/calls": 4.0, "control/error": 1.0}, {"control/calls": 2.0}, {"turns": 1.0}])
    assert {name: value for name, value in figures.items() if "control" in name} == {
        "wm/env/control/calls": 3.0,
        "wm/env/control/error": pytest.approx(1 / 6),
    }
    assert "wm/env/control/error" in summary([{"control/calls": 0.0, "control/error": 0.0}])


def test_successes_by_their_turns():
    names = {0: "1", 1: "1", 2: "2", 3: "3-4", 4: "3-4", 8: "5-8", 9: "9-16", 32: "17-32", 33: "33+", 100: "33+"}
    for turns, name in names.items():
        assert f"wm/env/success/turns_{name}" in summary([{"success": 1.0, "turns": float(turns)}])


@pytest.mark.parametrize(("lost", "most", "stops"), [(2, 0.5, False), (3, 0.5, True), (1, 0.0, True), (4, 1.0, False)])
def test_more_lost_episodes_than_the_share_stop_a_run(lost, most, stops):
    episodes = [{"lost": 1.0}] * lost + [{"lost": 0.0}, {}, {"success": 1.0}, {"lost": 0.0}][: 4 - lost]
    refusal = pytest.raises(RuntimeError, match=f"{lost} of 4 episodes lost their world .*allow more with max_lost$")
    with refusal if stops else nullcontext():
        check_lost(episodes, most)
    check_lost([], most)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8), st.integers(0, 8))
def test_it_does_not_matter_which_rank_had_an_episode(counts, cut):
    episodes = [{"actions": float(a + b), "effective": float(a), "success": 1.0, "turns": 1.0} for a, b in counts]
    assert summary(episodes[cut:] + episodes[:cut]) == pytest.approx(summary(episodes))
