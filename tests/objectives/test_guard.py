"""The guard's state machine, by hand and for any run: what it sees decides when the coefficient is lowered."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives.guard import Guard, GuardConfig


def evaluate(guard, step, held_out, training=None, entropy=None):
    """A step with a training NLL (None: without tokens), and an evaluation after it."""
    guard.after_step(nll=10 * (training or 0.0), tokens=10 * (training is not None), entropy=entropy)
    return guard.after_evaluation(step, {"held_out": (5 * held_out, 5)})


def run(guard, evaluations):
    """The evaluations, by number, at which the guard acts."""
    return [step for step, pair in enumerate(evaluations) if evaluate(guard, step, *pair) is not None]


def test_memorisation_by_hand():
    guard = Guard(GuardConfig(k=3, factor=0.5))
    #         falls together, and then: 1st, 2nd and 3rd rise; it goes on: the next three
    curve = [(2.0, 2.0), (1.0, 1.5), (1.1, 1.2), (1.2, 0.9), (1.3, 0.6), (1.4, 0.5), (1.5, 0.4), (1.6, 0.3), (1.7, 0.2)]
    assert run(guard, curve) == [4, 7]
    assert guard.multiplier == 0.25


def test_training_is_compared_over_the_last_k_rises_alone():
    assert run(Guard(GuardConfig(k=1)), [(1.0, 1.0), (1.1, 2.0), (1.2, 1.5)]) == [2]


def test_it_says_what_it_saw():
    guard = Guard(GuardConfig(k=2))
    texts = [evaluate(guard, step, *pair) for step, pair in enumerate([(1.0, 1.5), (1.1, 1.2), (1.25, 0.9)])]
    assert texts == [
        None,
        None,
        "guard: the NLL of held-out environment tokens rose in 2 evaluations in a row (1.000 to 1.250) while that of training "
        "fell (1.500 to 0.900); the coefficient is now 0.5 of what the config says",
    ]
    assert guard.figures() == {"guard/multiplier": 0.5, "guard/rises": 0.0}


@pytest.mark.parametrize(
    "curve",
    [
        [(2.0, 2.0), (1.9, 1.0), (1.8, 0.9), (1.7, 0.8), (1.6, 0.7)],  # the model learns
        [(1.0, 1.0), (1.1, 1.1), (1.2, 1.2), (1.3, 1.3), (1.4, 1.4)],  # both rise: something else is wrong
        [(1.0, 1.0), (1.1, 0.9), (1.0, 0.8), (1.1, 0.7), (1.0, 0.6)],  # noise
        [(1.0, 1.0), (1.1, 0.9), (1.2, 0.8), (1.2, 0.7), (1.3, 0.6)],  # a plateau in between
        [(1.0, None), (1.1, None), (1.2, None), (1.3, None), (1.4, None)],  # nothing is trained
    ],
)
def test_curves_without_memorisation(curve):
    assert run(Guard(GuardConfig(k=3)), curve) == []


def test_an_evaluation_without_tokens_does_not_count():
    guard = Guard(GuardConfig(k=2))
    assert run(guard, [(1.0, 1.0), (1.1, 0.9)]) == []
    guard.after_step(nll=6.0, tokens=10, entropy=None)
    blind = "guard: an evaluation had no environment tokens that count, so that it did not count"
    assert guard.after_evaluation(2, {"held_out": (0.0, 0)}) == blind
    assert guard.after_evaluation(2, {}) is None  # it is said once
    assert guard.after_evaluation(2, {"held_out": (float("nan"), 3)}) is None
    assert guard.rises == 1
    # and the training since the last that counted is one mean: (6 + 8) / 20 tokens
    assert "fell (1.000 to 0.700)" in evaluate(guard, 3, 1.2, 0.8)


def test_a_step_is_evaluated_once():
    """A resumed run repeats the evaluation of its checkpoint's step."""
    guard = Guard(GuardConfig(k=1))
    assert run(guard, [(1.0, 1.0)]) == []
    assert guard.after_evaluation(0, {"held_out": (9.0, 5)}) is None
    assert guard.rises == 0


def test_sets_are_watched_together_or_by_name():
    first = {"a": (1.0, 1), "b": (30.0, 10)}  # 31 / 11, of which b is the most
    second = {"a": (9.0, 1), "b": (10.0, 10)}
    for names, rises in ((None, 0), (["a"], 1), (["b"], 0), (["a", "b"], 0)):
        guard = Guard(GuardConfig(sets=names))
        guard.after_evaluation(0, first)
        guard.after_evaluation(1, second)
        assert guard.rises == rises, names
    with pytest.raises(UserError, match=r"guard\.sets: there is no evaluation set 'aa'; did you mean 'a'"):
        Guard(GuardConfig(sets=["aa"])).after_evaluation(0, first)


def steps(guard, entropies):
    return [n for n, value in enumerate(entropies) if guard.after_step(nll=0.0, tokens=0, entropy=value) is not None]


def test_entropy_by_hand():
    guard = Guard(GuardConfig(k=2, share=0.2, factor=0.1))
    # at once, not while it stays there or comes back for less than k steps, and again after k steps above
    assert steps(guard, [5.0, 3.0, 1.0, 0.9, 0.5, 2.0, 0.9, 2.0, 2.0, 0.9]) == [3, 9]
    assert guard.multiplier == pytest.approx(0.01)
    assert guard.figures()["guard/entropy"] == pytest.approx(0.18)


def test_entropy_says_what_it_saw():
    guard = Guard(GuardConfig())
    guard.after_step(nll=0.0, tokens=0, entropy=2.0)
    assert guard.after_step(nll=0.0, tokens=0, entropy=0.3) == (
        "guard: the policy's entropy is 0.3, under 0.2 of its start (2); the coefficient is now 0.5 of what the config says"
    )


def test_entropy_may_be_missing_or_left_alone():
    assert steps(Guard(GuardConfig()), [None, float("nan"), 1.0, None, 0.5, float("inf")]) == []
    assert steps(Guard(GuardConfig(share=0)), [1.0, 1e-9, 0.0]) == []
    guard = Guard(GuardConfig())
    assert steps(guard, [0.0, 0.0, 0.1]) == []  # a start of 0 has no share
    assert "guard/entropy" not in guard.figures()


VALUES = st.none() | st.floats(0, 10)
EVENTS = st.lists(st.tuples(st.booleans(), VALUES, VALUES, VALUES), max_size=40)
CONFIGS = st.builds(
    GuardConfig,
    k=st.integers(1, 4),
    factor=st.floats(0, 0.99),
    share=st.floats(0, 0.99),
    sets=st.none() | st.just(("a",)),
)


def feed(guard, events, first_step=0):
    said = []
    for step, (evaluates, a, b, c) in enumerate(events, first_step):
        if evaluates:
            text = guard.after_evaluation(step, {"a": (a or 0.0, 0 if a is None else 2), "b": (b or 0.0, 1)})
            said.append(None if text and "no environment tokens" in text else text)
        else:
            said.append(guard.after_step(nll=a or 0.0, tokens=0 if a is None else 3, entropy=c))
    return said


@settings(max_examples=examples(250), deadline=None)
@given(CONFIGS, EVENTS)
def test_the_multiplier_is_the_factor_to_the_number_of_times_it_spoke(config, events):
    guard, before = Guard(config), 1.0
    for step, event in enumerate(events):
        (text,) = feed(guard, [event], step)
        expected = before if text is None else before * config.factor
        assert guard.multiplier == expected
        assert text is None or "\n" not in text
        assert guard.rises <= config.k
        before = expected


@settings(max_examples=examples(250), deadline=None)
@given(CONFIGS, EVENTS, st.integers(0, 40))
def test_a_resume_anywhere_goes_on_exactly(config, events, cut):
    whole, half, resumed = Guard(config), Guard(config), Guard(config)
    said = feed(whole, events)
    feed(half, events[:cut])
    assert resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert feed(resumed, events[cut:], cut) == said[cut:]
    assert resumed.state_dict() == whole.state_dict()


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(1, 4), st.lists(st.floats(0.1, 10), min_size=2, max_size=20, unique=True))
def test_a_model_that_only_learns_is_left_alone(k, values):
    curve = [(value, value) for value in sorted(values, reverse=True)]
    assert run(Guard(GuardConfig(k=k)), curve) == []


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(1, 4), st.integers(1, 20))
def test_a_model_that_only_memorises_is_seen_every_k_evaluations(k, rises):
    curve = [(1.0 + 0.1 * n, 5.0 - 0.1 * n) for n in range(rises + 1)]
    assert len(run(Guard(GuardConfig(k=k)), curve)) == rises // k


def other(**values):
    state = Guard(GuardConfig()).state_dict()
    return {**state, "state": {**state["state"], **values}}


@pytest.mark.parametrize(
    "saved",
    [
        None,
        {},
        "x",
        Guard(GuardConfig(k=2)).state_dict(),
        {**Guard(GuardConfig()).state_dict(), "state": []},
        other(multiplier="0.5"),
        other(rising=[[1.0]]),
        other(rising=[1.0, 2.0]),
        other(rising=[["1", None]]),
        other(more=1),
    ],
)
def test_the_state_of_another_guard_is_not_taken_over(saved):
    guard = Guard(GuardConfig())
    steps(guard, [1.0, 0.1])
    assert not guard.load_state_dict(saved)
    assert guard.state_dict() == Guard(GuardConfig()).state_dict()


@pytest.mark.parametrize(
    ("value", "config"),
    [
        (None, None),
        (False, None),
        ("false", None),
        (True, GuardConfig()),
        ("True", GuardConfig()),
        ({}, GuardConfig()),
        ({"k": 5, "sets": ["a"]}, GuardConfig(k=5, sets=("a",))),
        ('{"factor": 0}', GuardConfig(factor=0)),
    ],
)
def test_ways_to_write_it(value, config):
    assert EchoConfig.read({"guard": value}).guard == config
    assert EchoConfig(0.1, guard=config).replace(coeff=0.2).guard == config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", r"guard is 'yes'; write true, or some of \{k: 3, factor: 0.5, share: 0.2, sets: null\}"),
        (3, "guard is 3; write true"),
        ([], r"guard is \[\]; write true"),
        ({"kk": 3}, "guard has no field 'kk'; did you mean 'k'"),
        ({"k": 0}, "guard.k is 0; write a whole number of evaluations >= 1"),
        ({"k": True}, "guard.k is True"),
        ({"factor": 1}, "guard.factor is 1; write a number >= 0 and < 1"),
        ({"share": -0.1}, "guard.share is -0.1; write a number >= 0 and < 1"),
        ({"factor": float("nan")}, "guard.factor is nan"),
        ({"sets": []}, r"guard.sets is \[\]; write names"),
        ("[" * 3000, "guard is "),
    ],
)
def test_bad_values_are_refused_in_one_line(value, message):
    with pytest.raises(UserError, match=message) as error:
        EchoConfig(0.1, guard=value)
    assert "\n" not in str(error.value)
