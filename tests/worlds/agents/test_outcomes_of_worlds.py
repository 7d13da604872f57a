"""What the marks of our worlds read from real episodes is what happened."""

import random

import pytest

from wm_plugin.worlds.agents import rollout
from wm_plugin.worlds.agents.outcomes import MARKS
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.worlds import load

pytestmark = pytest.mark.host  # schemas of tools


@pytest.mark.parametrize("name", MARKS)
def test_they_say_what_happened(name):
    world = load(name)
    if missing := world.missing():
        pytest.skip(f"needs {missing}")
    won = 0
    for number, row in enumerate(world.rows(2, 3)):
        policies = {True: world.expert(), False: world.wanderer(random.Random(number))}
        for policy in policies.values():
            played = rollout.play(world.make(), row, scripted(policy), max_turns=64)
            outcomes = [MARKS[name].outcome(turn.observations[0].text) for turn in played.turns]
            assert not any(one.over or one.won for one in outcomes[:-1])
            assert (outcomes[-1].over, outcomes[-1].won) == (True, played.success)
            won += played.success
    assert won >= 2
