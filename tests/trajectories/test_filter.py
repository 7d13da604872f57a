"""Each filter on trajectories made for it."""

import pytest

from wm_plugin.errors import UserError
from wm_plugin.trajectories.filter import DEFAULT, METHODS, NAMES, TRAJECTORY_FILTERS, TURN_FILTERS, Filter, of_method
from wm_plugin.trajectories.schema import Action, Call, Context, Observation, Trajectory, Turn


def turn(action, observation=None, tool=None, actor="agent"):
    calls = (Call(name=tool),) if tool else ()
    observed = () if observation is None else (Observation(kind="environment", text=observation),)
    return Turn(action=Action(text=action, calls=calls), observations=observed, actor=actor)


def run(name, *trajectories, **options):
    chosen = Filter([name], **options)
    return list(
        chosen([Trajectory(turns=turns) if isinstance(turns, tuple) else turns for turns in trajectories])
    ), chosen.taken


def actions(trajectory):
    return [turn.action.text for turn in trajectory.turns]


def test_the_registry_is_closed():
    assert set(NAMES) == {*TURN_FILTERS, *TRAJECTORY_FILTERS, "invalid_actions", "environment_failures", "duplicates"}
    assert set(DEFAULT) == set(NAMES) - {"no_change"}


@pytest.mark.parametrize(
    ("method", "left"),
    [("rwml", ["go", "take"]), ("word2world", ["go", "jump", "take"]), ("agentworld", ["go", "jump", "take"])],
)
def test_a_failed_action_is_left_out_by_the_method_not_by_all(method, left):
    failed = (turn("go", "a hall"), turn("jump", "Nothing happens."), turn("take", "yours"))
    (made,) = Filter(of_method(method))([Trajectory(turns=failed)])
    assert actions(made) == left


def test_word2world_leaves_nothing_out():
    odd = [Trajectory(turns=turns) for turns in ((turn("", "x"),), (turn("", "x"),), (turn("a", "sandbox died"),))]
    assert list(Filter(METHODS["word2world"])(odd)) == odd
    with pytest.raises(UserError, match="there are no filters for 'word2word'; did you mean 'word2world'"):
        of_method("word2word")


def test_too_short():
    left, taken = run("too_short", (turn("a", "1"),), (turn("a", "1"), turn("b")), (turn("a", "1"), turn("b", "2")))
    assert [actions(trajectory) for trajectory in left] == [["a", "b"]]
    assert taken == {"too_short": 2}


def test_undeclared_tools():
    declared = Context(action_space=({"type": "function", "function": {"name": "look"}}, {"name": "move"}))
    made = [
        Trajectory(turns=(turn("", "1", tool=tool, actor=actor),), context=context)
        for tool, context, actor in (
            ("look", declared, "agent"),
            ("move", declared, "agent"),
            ("fly", declared, "agent"),
            ("fly", Context(), "agent"),
            ("fly", declared, "user"),
        )
    ]
    left, taken = run("undeclared_tools", *made)
    assert left == [made[0], made[1], made[3], made[4]]
    assert taken == {"undeclared_tools": 1}


def test_empty_actions():
    (left,), taken = run("empty_actions", (turn("a", "1"), turn("  ", "2"), turn("", "3", tool="look")))
    assert actions(left) == ["a", ""]
    assert taken == {"empty_actions": 1}


def test_of_retries_the_last_one_stays():
    turns = (turn("get", "busy"), turn("get", "Error: 5"), turn("get", "ok"), turn("put", "failed"), turn("get", "x"))
    (left,), taken = run("retries", turns)
    assert [turn.observations[0].text for turn in left.turns] == ["ok", "failed", "x"]
    assert taken == {"retries": 2}


def test_waiting_is_no_retry_and_an_error_flag_says_so_without_words():
    waiting = (turn("wait", "You wait."), turn("wait", "You wait."))
    flagged = Observation(kind="tool", text="5", error=True)
    (left, other), taken = run(
        "retries", waiting, (waiting[0].model_copy(update={"observations": (flagged,)}), waiting[1])
    )
    assert len(left.turns) == 2
    assert len(other.turns) == 1
    assert taken == {"retries": 1}


def test_turns_that_change_nothing():
    (left,), taken = run(
        "no_change", (turn("a", "page 1"), turn("b", "page 1"), turn("c"), turn("d", "page 1"), turn("e", "page 2"))
    )
    assert actions(left) == ["a", "c", "e"]
    assert taken == {"no_change": 2}


@pytest.mark.parametrize("text", ["Nothing happens.", "Unknown action: fly", " nothing happens", "NO!"])
def test_invalid_actions(text):
    (left,), taken = run("invalid_actions", (turn("a", "fine"), turn("b", text), turn("c")), invalid=["^no!$"])
    assert actions(left) == ["a", "c"]
    assert taken == {"invalid_actions": 1}


@pytest.mark.parametrize("text", ["curl: connection refused", "HTTP 502 Bad Gateway", "the elevator is stuck"])
def test_environment_failures_take_the_trajectory(text):
    left, taken = run(
        "environment_failures", (turn("a", "1"),), (turn("a", text), turn("b", "2")), failures=["elevator"]
    )
    assert [actions(trajectory) for trajectory in left] == [["a"]]
    assert taken == {"environment_failures": 1}


def test_duplicates():
    same = (turn("a", "1"), turn("b", "2"))
    left, taken = run("duplicates", same, same, (turn("a", "1"), turn("b", "3")))
    assert len(left) == 2
    assert taken == {"duplicates": 1}


def test_filters_of_turns_come_first_so_that_what_is_left_is_judged():
    chosen = Filter(["too_short", "empty_actions"])
    assert list(chosen([Trajectory(turns=(turn("a", "1"), turn("", "2")))])) == []
    assert chosen.taken == {"empty_actions": 1, "too_short": 1}


def test_mistakes():
    with pytest.raises(UserError, match="there is no filter 'duplicate'; did you mean 'duplicates'"):
        Filter(["duplicate"])
    with pytest.raises(UserError, match="is no regular expression"):
        Filter(invalid=["("])
