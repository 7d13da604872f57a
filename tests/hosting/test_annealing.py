"""WMAct's turn budget and the strength of perturbations, by hand."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import Curriculum, Strength, TurnBudget


def test_by_hand():
    budget = TurnBudget(start=30, every=2)
    assert not budget.end_iteration([4, 6])
    assert budget.turns == 30
    assert budget.end_iteration([8, 10])  # mean 7, max 10: 8.5, rounded up
    assert budget.turns == 9
    assert not budget.end_iteration([2, 2, 2])
    assert budget.end_iteration([2])  # a tie of mean and max; what came before the last change is forgotten
    assert budget.turns == 2


def test_the_figure_is_what_the_episodes_had():
    budget = TurnBudget(start=9, every=1)
    assert budget.take([{"turns": 2.0}, {"turns": 4.0}, {"lost": 1.0}]) == {"wm/turn_budget": 9.0}
    assert budget.take([]) == {"wm/turn_budget": 4.0}  # (3 + 4)/2


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=12),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_a_restart_anywhere_changes_nothing_and_the_rule_is_the_paper_s(rollouts, start, every, restart):
    budget = TurnBudget(start, every)
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


@pytest.mark.parametrize("other", [TurnBudget(29, 10), TurnBudget(30, 11)])
def test_a_checkpoint_of_other_settings_is_not_taken(other):
    other.end_iteration([3])
    budget = TurnBudget(30, 10)
    assert not budget.load_state_dict(other.state_dict())
    assert not budget.load_state_dict({})
    assert budget == TurnBudget(30, 10)


def test_settings_that_do_not_fit():
    assert TurnBudget.read({"every": 3}) == TurnBudget(30, 3)
    for name in ("start", "every"):
        for value in (0, 1.5, True, "x"):
            with pytest.raises(UserError, match=rf"turn_budget.{name} is {value!r}; write a whole number >= 1"):
                TurnBudget.read({name: value}, "turn_budget")
    with pytest.raises(UserError, match="turn_budget has no field 'evry'; did you mean 'every'?"):
        TurnBudget.read({"evry": 3}, "turn_budget")


def strengths(values, successes):
    strength = Strength(Curriculum.read(values))
    taken = [strength.take([{"success": one} for one in some] + [{"turns": 1.0}]) for some in successes]
    return [round(one["wm/control_strength"], 6) for one in taken], strength


GOOD, FAIR, BAD = [1.0, 1.0], [1.0, 0.0], [0.0]
RULE = {"by": "success", "start": 0.0, "end": 1.0, "change": 0.5, "every": 2, "above": 0.75, "below": 0.25}


@pytest.mark.parametrize(
    ("values", "successes", "expected"),
    [
        ({"start": 0.2, "end": 1.0, "steps": 4}, [BAD] * 6, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]),
        ({"start": 1.0, "end": 0.0, "steps": 2}, [[]] * 4, [1.0, 0.5, 0.0, 0.0]),
        (RULE, [GOOD] * 2 + [FAIR] * 2 + [BAD] * 2 + [GOOD] * 3, [0, 0, 0.5, 0.5, 0.5, 0.5, 0, 0, 0.5]),
        ({**RULE, "start": 1.0, "end": 0.2}, [GOOD] * 4 + [[]], [1, 1, 0.5, 0.5, 0.2]),  # it becomes easier
        (RULE, [[]] * 5, [0] * 5),  # nothing is known of success
        (RULE, [GOOD, FAIR, []], [0, 0, 0.5]),  # three of four are enough
        ({**RULE, "start": 0.5}, [FAIR, [0.0, 0.0], FAIR, FAIR, []], [0.5] * 5),  # one of four, and two of four
    ],
)
def test_a_curriculum_by_hand(values, successes, expected):
    assert strengths(values, successes)[0] == expected


def test_a_curriculums_defaults_and_bounds():
    shares = {"start": 0.0, "end": 1.0, "change": 0.1, "above": 0.7, "below": 0.3}
    assert Curriculum().model_dump() == {"by": "step", "steps": 100, "every": 10, **shares}
    edges = {"start": 0, "end": 1, "change": 1, "every": 1, "above": 1, "below": 0}
    assert Curriculum.read({"by": "success", **edges}).model_dump() == {"by": "success", "steps": 100, **edges}
    for name in shares:
        for value in (-0.1, 1.1):
            with pytest.raises(UserError, match=f"{name} is {value}; write a number between 0 and 1"):
                Curriculum.read({"by": "success", name: value})
    for by, name in (("step", "steps"), ("success", "every")):
        assert getattr(Curriculum.read({"by": by, name: 1}), name) == 1
        with pytest.raises(UserError, match=f"{name} is 0; write a whole number"):
            Curriculum.read({"by": by, name: 0})


def test_a_curriculum_goes_on_where_it_was():
    values, successes = {"by": "success", "every": 3, "change": 0.3}, [[1.0], [0.0], [1.0], [1.0], [1.0], [1.0], [0.0]]
    _, strength = strengths(values, successes[:4])
    resumed, whole = Strength(Curriculum.read(values)), strengths(values, successes)[1]
    assert resumed.load_state_dict(json.loads(json.dumps(strength.state_dict())))
    for some in successes[4:]:
        resumed.take([{"success": one} for one in some])
    assert resumed == whole
    other = Strength(Curriculum.read({**values, "change": 0.1}))
    assert not other.load_state_dict(strength.state_dict())
    assert not other.load_state_dict({})
    assert other == Strength(Curriculum.read({**values, "change": 0.1}))
