"""Files of transitions hold a trajectory's turns once, and every transition comes back as it was."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.data import Trajectory, Turn, expand
from wm_plugin.data.compact import compact
from wm_plugin.data.schema import Action, Call, Context, Observation, Source
from wm_plugin.data.transitions import holds_transitions, read_transitions, transitions_in
from wm_plugin.data.write import write_transitions
from wm_plugin.errors import UserError

values = st.sampled_from([1, 1.0, True, "x", None, 2**70])
observations = st.builds(
    Observation,
    kind=st.just("tool"),
    text=st.sampled_from(["", "a", "\ud800"]),
    data=st.dictionaries(st.just("n"), values),
)
actions = st.builds(
    Action, text=st.sampled_from(["", "go"]), calls=st.tuples(st.builds(Call, name=st.just("f"), arguments=values))
)
turns = st.lists(
    st.builds(
        Turn,
        action=actions,
        observations=st.lists(observations, max_size=3).map(tuple),
        actor=st.sampled_from(["agent", "user"]),
    ),
    max_size=6,
).map(tuple)
trajectories = st.lists(
    st.builds(
        Trajectory,
        turns=turns,
        context=st.builds(Context, task=st.sampled_from(["", "t"])),
        task_id=st.sampled_from(["a", "b"]),
    ),
    max_size=4,
)


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@settings(max_examples=examples(60), deadline=None)
@given(trajectories, st.sampled_from([None, 0, 1, 2]), st.sampled_from(["all", "one", "bench"]), st.randoms())
def test_every_transition_comes_back(tmp_path_factory, made, history, which, rng):
    """Also of a part of them, and read from a file that repeats the histories."""
    path = tmp_path_factory.mktemp("x") / "t.jsonl"
    transitions = list(expand(made, turns=which, history=history))
    transitions = [transition for transition in transitions if rng.random() < 0.8]
    if rng.random() < 0.2:
        rng.shuffle(transitions)
    written = [transition.to_bytes() for transition in transitions]
    for repeat in (True, False):
        assert write_transitions(transitions, path, repeat_history=repeat) == len(transitions)
        transitions = list(read_transitions(path))
        assert [transition.to_bytes() for transition in transitions] == written


def long(turns, row=0):
    made = tuple(
        Turn(action=Action(text=f"action {n} " * 10), observations=(Observation(kind="tool", text=f"{n} " * 50),))
        for n in range(turns)
    )
    return Trajectory(turns=made, task_id="t", source=Source(format="wm", file="f.jsonl", row=row))


def test_the_turns_are_written_once(tmp_path):
    made = [long(30, row) for row in range(3)]
    size = sum(len(trajectory.to_bytes()) for trajectory in made)
    path = tmp_path / "t.jsonl"
    assert write_transitions(expand(made), path) == 90
    assert len(lines_of(path)) == 3
    assert path.stat().st_size < 1.5 * size
    assert holds_transitions(path)
    assert list(transitions_in(path)) == list(expand(made))
    write_transitions(expand(made), path, repeat_history=True)
    assert path.stat().st_size > 10 * size
    assert len(lines_of(path)) == 90


def test_windows_and_other_actions_share_what_they_can(tmp_path):
    (made,) = [long(20)]
    path = tmp_path / "t.jsonl"
    transitions = list(expand([made], history=3))
    others = [one.model_copy(update={"action": Action(text="other")}) for one in transitions]
    mixed = [transition for pair in zip(transitions, others, strict=True) for transition in pair]
    write_transitions(mixed, path)
    assert len(lines_of(path)) == 1
    assert list(read_transitions(path)) == mixed
    apart = [transitions[4], transitions[15]]  # between them turns are missing
    write_transitions(apart, path)
    assert len(lines_of(path)) == 2
    assert list(read_transitions(path)) == apart


def test_files_of_both_forms_one_after_the_other(tmp_path):
    transitions = list(expand([long(4), long(4, 1)]))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_transitions(transitions[:4], first, repeat_history=True)
    write_transitions(transitions[4:], second)
    second.write_bytes(first.read_bytes() + second.read_bytes())
    assert list(read_transitions(second)) == transitions


def test_no_more_than_a_trajectory_is_held():
    read = []

    def endless():
        for row in itertools.count():
            read.append(row)
            yield long(5, row)

    lines = compact(expand(endless()))
    for number in range(4):
        assert next(lines).source.row == number
        assert len(read) == number + 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turn": 9}, "the history of turn 9 is not in the line"),
        ({"history": 9}, "the history of turn 1 is not in the line"),
        ({"turn": 10**30}, "is not in the line"),
        ({"history": 0, "turn": 7}, "turn 7 or its observation is not in the line"),
        ({"observation": 3}, "turn 1 or its observation is not in the line"),
        ({"observation": -1}, "no transition"),
        ({"history": -1}, "no transition"),
    ],
)
def test_a_reference_to_what_is_not_there_names_the_row(tmp_path, change, message):
    path = tmp_path / "t.jsonl"
    write_transitions(expand([long(3)]), path)
    (line,) = lines_of(path)
    line["transitions"][1] |= change
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=f"row 0: no transition .*{message}" if message != "no transition" else message):
        list(read_transitions(path))
