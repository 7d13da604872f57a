from collections import Counter

import pytest

from wm_plugin.data.prompts import load
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.transitions import expand
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.cases import Demonstrations, episodes

DIALOGUE, TRANSITION = load("word2world"), load("rwml")


def episode(task: str, *steps: tuple[str, str], success: bool | None = True, **data: object) -> Trajectory:
    turns = [Turn(action=Action(text=a), observations=[Observation(kind="user", text=o, data=data)]) for a, o in steps]
    context = Context(task=f"Do {task}.", initial_state="A start.", world_context=f"Secret of {task}.")
    return Trajectory(turns=turns, context=context, task_id=task, success=success)


def of(items, kind="word2world", prompts=DIALOGUE, **settings):
    made = episodes(items, kind, prompts, **{"world_context": True, **settings})
    return [case for one in made for case in one.cases]


ONE = episode("one", ("go", "a hall"), ("take", "yours"))


def test_the_model_reads_the_real_dialogue_before_each_action():
    first, second = of([ONE])
    assert [m["content"] for m in first.messages[1:]] == ["go"]
    assert [m["content"] for m in second.messages[1:]] == ["go", "a hall", "take"]
    assert "Secret of one." in first.messages[0]["content"]
    assert "Secret" not in str(of([ONE], world_context=False)[0].messages)
    assert (first.real, second.real, first.before, second.before) == ("a hall", "yours [SUCCESS]", "A start.", "a hall")
    assert (first.won, second.won, first.known, first.turn, second.turn) == (False, True, True, 1, 2)
    assert not of([episode("two", ("go", "x"), success=None)])[0].known


def test_a_transition_is_asked_as_in_its_training():
    cases = of([ONE], "rwml-sft", TRANSITION, world_context=False)
    assert [case.real for case in cases] == ["a hall", "yours"]  # these prompts have no mark
    assert cases == of(expand([ONE]), "rwml-sft", TRANSITION, world_context=False)
    assert "take" in cases[1].messages[-1]["content"]
    (made,) = list(episodes([ONE.model_copy(update={"turns": ONE.turns[:1]})], "rwml", TRANSITION, world_context=False))
    assert made.sample is None  # it reasons first
    with pytest.raises(UserError, match="word2world is made of trajectories"):
        of(expand([ONE]))


def test_groups_of_a_turn():
    calls = Action(calls=[Call(name="look"), Call(name="find")])
    results = [
        Observation(kind="tool", text="no such file", tool="look", call=0, error=True),
        Observation(kind="tool", text="x", tool="find", call=1),
    ]
    both = Trajectory(turns=[Turn(action=calls, observations=results)], task_id="t")
    (together,) = of([both])
    assert (together.tool, together.observer, together.error) == ("several", "tool", True)
    apart = of([both], "rwml-sft", TRANSITION)
    assert [(case.tool, case.error) for case in apart] == [("look", True), ("find", False)]
    assert apart[0].category in ("retrieval", "action", "expansion")


def test_what_is_no_target_is_left_out():
    left = Counter()
    marked = episode("one", ("go", "a hall"), target=False)
    tagged = episode("two", ("go", "a <next_state> tag"))
    assert of([marked], left_out=left) == []
    assert len(of([marked, tagged, ONE], "rwml-sft", TRANSITION, left_out=left)) == 2
    assert left == {"no target": 1, "tag in observation": 1}


def test_a_limit_is_of_trajectories():
    two = episode("two", ("go", "x"))
    assert {case.trajectory for case in of([ONE, two], limit=1)} == {of([ONE])[0].trajectory}
    assert len(of(expand([ONE, two]), "rwml-sft", TRANSITION, limit=1)) == 2


def test_there_must_be_such_a_kind():
    for kind in ("word2word", "rft"):
        with pytest.raises(UserError, match=f"no kind '{kind}'"):
            of([ONE], kind)


TRAIN = [episode(f"task {n}", ("go", f"room {n}"), ("take", f"thing {n}")) for n in range(12)]


def numbers(case):
    text = case.messages[0]["content"]
    return [n for n in range(12) if f"\nroom {n}\n" in text]


def asked(item, shots=3, seed=0, train=TRAIN, **settings):
    drawn = Demonstrations(train, shots, seed=seed, source="train.jsonl")
    shown = drawn.shown(item, DIALOGUE, world_context=settings.get("world_context", True))
    return of([shown], **settings)[0]


def test_demonstrations_are_never_of_the_same_task():
    for item in TRAIN:
        case = asked(item)
        text = case.messages[0]["content"]
        assert len(numbers(case)) == 3
        assert f"thing {item.task_id[5:]} [SUCCESS]" not in text
        assert text.count("[SUCCESS]") == 4  # each ends with it, and the instructions name it
        assert text.count("Hidden state at the start:\nSecret") == 3
    assert "Secret" not in str(asked(ONE, world_context=False).messages)


def test_demonstrations_are_drawn_by_the_seed():
    assert asked(ONE).messages == asked(ONE, train=TRAIN[::-1]).messages
    assert len({tuple(numbers(asked(ONE, seed=seed))) for seed in range(5)}) > 1
    own = TRAIN[numbers(asked(ONE))[0]]
    assert numbers(asked(own)) != numbers(asked(ONE))
    # the others stay when one is left out
    assert len(set(numbers(asked(ONE))) & set(numbers(asked(own)))) == 2


def test_the_same_episode_without_a_task_is_no_demonstration():
    train = [item.model_copy(update={"task_id": ""}) for item in TRAIN[:4]]
    assert "room 0" not in str(asked(train[0], train=train).messages)


def test_too_few_demonstrations():
    with pytest.raises(UserError, match="train.jsonl: has 2 tasks to demonstrate, fewer than 3"):
        asked(ONE, train=TRAIN[:2] * 3)
    with pytest.raises(UserError, match="2 tasks to demonstrate without task 0, fewer than 3"):
        asked(TRAIN[0], train=TRAIN[:3])
    with pytest.raises(UserError, match="shots is 0"):
        asked(ONE, shots=0)
    hidden = DIALOGUE.model_copy(update={"omits": ["context"]})
    with pytest.raises(UserError, match="show no context"):
        Demonstrations(TRAIN, 3).shown(ONE, hidden, world_context=False)
