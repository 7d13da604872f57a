"""An environment with WMAct's reward: the same class, another number."""

import asyncio
from typing import ClassVar

import pytest

from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort
from wm_plugin.hosting.world import is_waiting, report
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.maze import MazeEnvironment
from wm_plugin.worlds.wrappers.rewarded import rewarded

BOARD = "#####\n#A.G#\n#####"


def played(environment, *turns, max_turns=5):
    instance = environment()
    instance.reset(board=BOARD, max_turns=max_turns)
    for turn in turns:
        instance.move(turn)
    return instance.get_reward()


@pytest.mark.parametrize(
    ("settings", "turns", "reward"),
    [
        ({}, ["R; R"], 1.0),
        ({}, ["U; R; D; R"], 0.5),  # two of four changed the state
        ({}, ["U", "R; R"], 2 / 3),
        ({}, ["x; R; R"], 2 / 3 - 0.1),  # and one is no action
        ({}, ["U; R"], 0.0),
        ({}, [], 0.0),  # no action: no share
        ({"format_penalty": 0.0}, ["x; R; R"], 2 / 3),
        ({"rescale": False}, ["U; R; D; R"], 1.0),
        ({"rescale": False, "action_penalty": 0.1}, ["U; R; D; R"], 0.6),
        ({"rescale": False, "turn_penalty": 0.1}, ["U; R; D; R"], 0.9),
        ({"rescale": False, "turn_penalty": 0.1}, ["U", "R; D; R"], 0.8),
        ({"gamma": 0.5}, ["R", "R"], 0.5),
        ({"gamma": 0.5, "rescale": False, "format_penalty": 0.0}, ["x", "R", "R"], 0.25),
    ],
)
def test_by_hand(settings, turns, reward):
    assert played(rewarded(MazeEnvironment, **settings), *turns) == pytest.approx(reward)


@pytest.mark.parametrize(
    "settings", [{}, {"turn_penalty": 0.1, "action_penalty": 0.05}, {"rescale": False, "gamma": 0.5}]
)
@pytest.mark.parametrize("before", [[], ["R"], ["U"]])
def test_an_answer_without_an_action_costs_what_an_invalid_action_costs(settings, before):
    environment = rewarded(MazeEnvironment, **settings)
    silent = environment()
    silent.reset(board=BOARD, max_turns=5)
    for turn in before:
        silent.move(turn)
    port = EpisodePort(silent)
    port.end(1)
    assert silent.get_reward() == pytest.approx(played(environment, *before, "fly"))
    assert silent.get_reward() < 0
    wrong = environment()
    wrong.reset(board=BOARD, max_turns=5)
    for turn in (*before, "fly"):
        wrong.move(turn)
    assert port.report() == report(wrong)  # so it does in what is logged and in the turns of the budget
    silent.reset(board=BOARD, max_turns=5)  # the next episode of a pool's instance
    port.end()
    assert silent.get_reward() >= -0.2


def test_who_waits_for_an_action():
    environment = MazeEnvironment()
    assert not is_waiting(environment)
    environment.reset(board=BOARD, max_turns=1)
    assert is_waiting(environment)
    environment.move("U")
    assert not is_waiting(environment)
    assert not is_waiting(Bare())


class Slow(MazeEnvironment):
    async def get_reward(self):
        await asyncio.sleep(0)
        return super().get_reward()


def test_an_outcome_that_is_awaited():
    assert asyncio.run(played(rewarded(Slow), "U; R; R")) == pytest.approx(2 / 3)


class Bare:
    metrics: ClassVar = {"actions": 1}

    def reset(self): ...


class Outcome(Bare):
    def get_reward(self):
        return 1.0


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        (GridEnvironment, {"rescal": True}, "episode_reward has no field 'rescal'; did you mean 'rescale'?"),
        (GridEnvironment, {"action_penalty": -1}, "episode_reward.action_penalty is -1; write the amount to subtract"),
        (GridEnvironment, {"gamma": 2}, "episode_reward.gamma is 2; write a number between 0 and 1"),
        (GridEnvironment, {"rescale": "maybe"}, "episode_reward.rescale is 'maybe'; write true or false"),
        (Bare, {}, "Bare has no get_reward: there is no outcome to rescale"),
    ],
)
def test_what_does_not_fit(environment, settings, message):
    with pytest.raises(UserError) as error:
        rewarded(environment, **settings)
    assert str(error.value).startswith(message)


def test_an_environment_that_does_not_count():
    with pytest.raises(UserError, match="Outcome.metrics has no effective: WMAct's reward counts them"):
        rewarded(Outcome)().get_reward()


class Turnless(Outcome):
    metrics: ClassVar = {"actions": 1, "effective": 1}


def test_an_environment_without_turns():
    assert rewarded(Turnless, action_penalty=0.1)().get_reward() == pytest.approx(0.9)
    for setting, reason in (({"turn_penalty": 0.1}, "turn_penalty is set"), ({"gamma": 0.5}, "gamma is below 1")):
        with pytest.raises(UserError, match=f"{reason}, but the column of turns is missing"):
            rewarded(Turnless, **setting)().get_reward()
