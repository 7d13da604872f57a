"""WMAct's turn budget, by hand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.errors import UserError
from wm_plugin.worlds.wrappers.annealing import TurnBudget


def test_by_hand():
    budget = TurnBudget(start=30, every=2)
    assert not budget.end_iteration([4, 6])
    assert budget.turns == 30
    assert budget.end_iteration([8, 10])  # mean 7, max 10: 8.5, rounded up
    assert budget.turns == 9
    assert not budget.end_iteration([2, 2, 2])
    assert budget.end_iteration([2])  # a tie of mean and max; what came before the last change is forgotten
    assert budget.turns == 2


def test_it_never_rises():
    budget = TurnBudget(start=3, every=1)
    assert budget.end_iteration([9, 9])
    assert budget.turns == 3


def test_the_figure_is_what_the_episodes_had():
    budget = TurnBudget(start=9, every=1)
    assert budget.take([{"turns": 2.0}, {"turns": 4.0}, {"lost": 1.0}]) == {"wm/turn_budget": 9.0}
    assert budget.take([]) == {"wm/turn_budget": 4.0}  # (3 + 4)/2


def test_one_episode_without_a_turn():
    budget = TurnBudget(start=5, every=1)
    assert budget.end_iteration([0])
    assert budget.turns == 1


def test_no_episode_at_all():
    budget = TurnBudget(start=5, every=1)
    assert budget.end_iteration([])
    assert budget.turns == 5
    budget.end_iteration([2])
    assert budget.turns == 2


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=12),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_a_restart_anywhere_changes_nothing_and_the_rule_is_the_paper_s(rollouts, start, every, restart):
    budget = whole = TurnBudget(start, every)
    expected, window = start, []
    for number, turns in enumerate(rollouts):
        if number == restart:
            saved = json.loads(json.dumps(budget.state_dict()))
            budget = TurnBudget(start, every)
            assert budget.load_state_dict(saved)
        window += turns
        if number % every == every - 1:
            if window:
                expected = max(1, min(expected, math.ceil((sum(window) / len(window) + max(window)) / 2)))
            window = []
        assert budget.end_iteration(turns) == (number % every == every - 1)
        assert budget.turns == expected
    assert 1 <= budget.turns <= whole.start


@pytest.mark.parametrize("other", [TurnBudget(29, 10), TurnBudget(30, 11)])
def test_a_checkpoint_of_other_settings_is_not_taken(other):
    other.end_iteration([3])
    budget = TurnBudget(30, 10)
    assert not budget.load_state_dict(other.state_dict())
    assert not budget.load_state_dict({})
    assert budget == TurnBudget(30, 10)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "x", None])
@pytest.mark.parametrize("name", ["start", "every"])
def test_settings_that_are_none(name, value):
    with pytest.raises(UserError, match=rf"turn_budget.{name} is {value!r}; write a whole number >= 1"):
        TurnBudget.read({name: value})


def test_mappings_that_are_none():
    assert TurnBudget.read({"every": 3}) == TurnBudget(30, 3)
    with pytest.raises(UserError, match="turn_budget has no field 'evry'; did you mean 'every'?"):
        TurnBudget.read({"evry": 3})
    with pytest.raises(UserError, match="turn_budget is 30; write fields"):
        TurnBudget.read(30)
