"""Which turns become samples, with how much history, and on which side of a split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_plugin.data import Trajectory, Turn, expand
from wm_plugin.data.schema import Action, Call, Observation, Source
from wm_plugin.data.transitions import (
    holds_transitions,
    identity,
    is_validation,
    pool_of,
    read_transitions,
    shortened,
    transitions_in,
    with_success,
)
from wm_plugin.data.write import write_transitions
from wm_plugin.errors import UserError


def turn(number, results=1, actor="agent"):
    calls = tuple(Call(name=f"tool{index}") for index in range(results))
    observations = tuple(
        Observation(kind="tool", text=f"{number}.{index}", tool=f"tool{index}", call=index) for index in range(results)
    )
    return Turn(action=Action(text=str(number), calls=calls), observations=observations, actor=actor)


def trajectory(*turns, task="task", row=0):
    return Trajectory(turns=turns, task_id=task, source=Source(format="wm", file="f.jsonl", row=row))


def texts(transitions):
    return [transition.observation.text for transition in transitions]


def test_every_result_is_a_sample_and_the_users_own_are_not():
    made = trajectory(turn(0), turn(1, results=3), turn(2, actor="user"), turn(3, results=0), turn(4))
    transitions = list(expand([made]))
    assert texts(transitions) == ["0.0", "1.0", "1.1", "1.2", "4.0"]
    assert [len(transition.history) for transition in transitions] == [0, 1, 1, 1, 4]
    assert transitions[-1].history[2].actor == "user"
    assert transitions[3].action == made.turns[1].action
    assert transitions[3].observation.call == 2


def test_history_is_cut_in_turns():
    made = trajectory(*(turn(number) for number in range(4)))
    assert [t.action.text for t in list(expand([made], history=2))[3].history] == ["1", "2"]
    assert all(transition.history == () for transition in expand([made], history=0))
    for turns in (0, 2, 9, None):
        assert list(shortened(expand([made]), turns)) == list(expand([made], history=turns))
    with pytest.raises(UserError, match="history is -1"):
        list(shortened([], -1))


def test_one_turn_a_trajectory_whatever_stands_beside_it():
    several = [trajectory(*(turn(number) for number in range(6)), row=row) for row in range(40)]
    drawn = list(expand(several, turns="one"))
    assert len(drawn) == 40
    assert len({transition.turn for transition in drawn}) > 3
    assert texts(expand(several[7:8], turns="one")) == texts(drawn[7:8])
    assert texts(expand(several, turns="one", seed=1)) != texts(drawn)
    assert list(expand([trajectory(turn(0, results=0))], turns="one")) == []


def test_half_of_first_last_and_three_more():
    several = [trajectory(*(turn(number) for number in range(20)), row=row) for row in range(400)]
    chosen = [transition.turn for transition in expand(several, turns="bench")]
    assert len(chosen) == pytest.approx(1000, abs=90)  # half of five of each
    assert chosen.count(0) == pytest.approx(200, abs=40)
    assert chosen.count(19) == pytest.approx(200, abs=40)
    assert set(chosen) == set(range(20))
    few = [trajectory(*(turn(number) for number in range(4)), row=row) for row in range(400)]
    assert len(list(expand(few, turns="bench"))) == pytest.approx(800, abs=80)


def test_of_screens_those_that_change_most():
    screens = ["a b c d"] * 8
    screens[3], screens[4], screens[6] = "a b e f", "g h i j", "k l m n"  # 4, 5 and 7 follow a change, too

    def made(row, **metadata):
        turns = [
            Turn(action=Action(text="tap"), observations=(Observation(kind="environment", text=text),))
            for text in screens
        ]
        return trajectory(*turns, row=row).model_copy(update={"metadata": metadata})

    seen = {one.turn for row in range(60) for one in expand([made(row, domain="android")], turns="bench")}
    assert seen == {0, 4, 5, 6, 7}
    assert {one.turn for row in range(60) for one in expand([made(row, domain="swe")], turns="bench")} == set(range(8))


def test_pools_have_no_task_in_common():
    several = [trajectory(turn(0), row=row).model_copy(update={"task_id": f"task {row // 3}"}) for row in range(3000)]
    shares = {"cpt": 0.5, "sft": 0.3, "rl": 0.1}
    pools = [pool_of(one, shares) for one in several]
    assert all(len(set(pools[row : row + 3])) == 1 for row in range(0, 3000, 3))
    for name, share in (*shares.items(), (None, 0.1)):
        assert pools.count(name) / 3000 == pytest.approx(share, abs=0.05)
    assert [pool_of(one, shares, seed=1) for one in several] != pools


def test_each_pool_has_the_same_share_of_the_validation_split():
    tasks = [trajectory(turn(0), task=f"task {number}") for number in range(4000)]
    rl = [one for one in tasks if pool_of(one, {"rl": 0.1, "sft": 0.9}) == "rl"]
    assert sum(is_validation(one, 0.1) for one in rl) / len(rl) == pytest.approx(0.1, abs=0.05)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 5))
def test_a_split_leaks_no_task(tasks, share, seed):
    made = [trajectory(turn(0), task=str(task), row=row) for row, task in enumerate(tasks)]
    sides = {}
    for t in made:
        assert sides.setdefault(t.task_id, is_validation(t, share, seed)) == is_validation(t, share, seed)


def test_the_share_is_about_that_of_the_tasks_and_nested():
    made = [trajectory(turn(0), task=str(task)) for task in range(2000)]
    small, large = ({t.task_id for t in made if is_validation(t, share)} for share in (0.1, 0.3))
    assert 150 < len(small) < 250
    assert small < large
    with pytest.raises(UserError, match="the validation share is 2"):
        is_validation(made[0], 2)


def test_trajectories_without_a_source_are_told_apart_by_what_is_in_them():
    assert identity(Trajectory(turns=(turn(0),))) != identity(Trajectory(turns=(turn(1),)))
    assert identity(trajectory(turn(0), row=1)) != identity(trajectory(turn(0), row=2))


def test_transitions_come_back_from_their_file(tmp_path):
    transitions = list(expand([trajectory(turn(0), turn(1))]))
    path = tmp_path / "t.jsonl"
    write_transitions(transitions, path)
    assert holds_transitions(path)
    assert list(read_transitions(path)) == list(transitions_in(path)) == transitions
    path.write_bytes(trajectory(turn(0), turn(1)).to_bytes() + b"\n")
    assert not holds_transitions(path)
    assert list(transitions_in(path)) == transitions


@pytest.mark.parametrize(
    ("row", "message"),
    [("{broken", "row 1: not JSON"), ('{"history": []}', "row 1: no transition"), ("7", "row 1: no transition")],
)
def test_a_row_that_is_no_transition_is_named(tmp_path, row, message):
    path = tmp_path / "t.jsonl"
    write_transitions(list(expand([trajectory(turn(0), turn(1))]))[:1], path)
    path.write_bytes(path.read_bytes() + row.encode() + b"\n")
    with pytest.raises(UserError, match=message):
        list(read_transitions(path))


def written(action, *observations):
    """A turn whose length is counted in words."""
    return Turn(
        action=Action(text=action), observations=tuple(Observation(kind="environment", text=o) for o in observations)
    )


def test_history_is_cut_in_tokens_at_whole_turns():
    # 3, 2 and 4 words, and a turn of a call: `look {"at": "it"}` and "a b"
    called = Turn(
        action=Action(calls=(Call(name="look", arguments={"at": "it"}),)),
        observations=(Observation(kind="tool", text="a b", tool="look", call=0),),
    )
    made = trajectory(written("a b", "c"), written("a", "b"), written("a", "b c", "d"), called, written("end", "."))

    def lengths(limit):
        counted = expand([made], history_tokens=limit, count=lambda text: len(text.split()))
        return {transition.turn: len(transition.history) for transition in counted}

    assert lengths(0) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}
    assert lengths(4) == {0: 0, 1: 1, 2: 1, 3: 1, 4: 0}  # the call's turn is 5 long, and none before it is taken
    assert lengths(5) == {0: 0, 1: 1, 2: 2, 3: 1, 4: 1}
    assert lengths(9) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 2}
    assert lengths(14) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    kept = list(expand([made], history_tokens=5, count=lambda text: len(text.split())))
    assert kept[-1].history == (called,)


def test_a_turn_is_counted_once_and_only_where_it_is_needed():
    texts = []
    made = trajectory(*(written(f"act{number}", f"obs{number}") for number in range(50)))
    list(expand([made], history_tokens=10, count=lambda text: texts.append(text) or 1))
    assert len(texts) == len(set(texts)) == 2 * 49
    texts.clear()
    list(expand([made], history_tokens=1, turns="one", count=lambda text: texts.append(text) or 1))
    assert len(texts) <= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": "alll"}, "did you mean 'all'"),
        ({"history": -1}, "history is -1"),
        ({"history_tokens": 1.5, "count": len}, "history_tokens is 1.5"),
        ({"history_tokens": 5}, "history_tokens needs count"),
        ({"history_tokens": 5, "count": len, "history": 2}, "leave one of them out"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        list(expand([], **options))


def test_the_last_observation_of_a_success_says_so_and_history_does_not():
    def said(text, actor="agent", **data):
        return Turn(
            action=Action(text="x"), observations=(Observation(kind="user", text=text, data=data),), actor=actor
        )

    turns = (said("a"), said("b"), said("its own", actor="user"))
    won = Trajectory(turns=turns, success=True)
    marks = [transition.observation.data.get("success") for transition in expand([won])]
    assert marks == [None, True]
    assert {transition.trajectory for transition in expand([won])} == {identity(won)}
    marked = Trajectory(turns=(said("a", success=True), said("b")), success=True)
    for same in (
        marked,
        Trajectory(turns=turns, success=False),
        Trajectory(turns=turns),
        Trajectory(turns=(), success=True),
    ):
        assert with_success(same) is same
