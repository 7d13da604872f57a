"""Which observations each kind of samples learns: by its method's filters, and by what a filter marked."""

import pytest

from wm_plugin.data import kinds, summary
from wm_plugin.data.filter import Filter, left_out
from wm_plugin.data.kinds import KINDS, Exclusions, kind_of, samples
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Observation, Source, Trajectory, Turn
from wm_plugin.data.transitions import expand, identity
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError

HALL, IN_PART, FAILED, LAMP = "a hall", "Invalid: 1 of 2\na door", "Nothing happens.", "a lamp"
STEPS = ((HALL, 0, 1), (IN_PART, 1, 2), (FAILED, 1, 1), (LAMP, 0, 1))


def filtered(folder, method):
    """A file of one episode, of which the world has counted the invalid actions, as a method's filters leave it."""
    turns = tuple(
        Turn(
            action=Action(text=f"act {number}"),
            observations=(Observation(kind="environment", text=text, data={"invalid": invalid, "actions": actions}),),
        )
        for number, (text, invalid, actions) in enumerate(STEPS)
    )
    episode = Trajectory(turns=turns, task_id="1", source=Source(format="wm", file="f", row=0))
    write(Filter(without=left_out(method))([episode]), folder / "left.jsonl")
    return folder / "left.jsonl"


def learnt(path, kind, prompts=None):
    """The texts that count, or that a reward compares with."""
    for sample in samples(path, kind, prompts=prompts):
        if "target" in sample.columns:
            yield sample.columns["target"]
        else:
            yield from (m["content"] for m, counts in zip(sample.messages, sample.train, strict=True) if counts)


@pytest.mark.parametrize(
    ("kind", "method", "prompts", "expected"),
    [
        ("rwml", "rwml", None, [HALL, LAMP]),
        ("rwml-sft", "rwml", None, [HALL, LAMP]),
        ("word2world", "word2world", None, [HALL, IN_PART, FAILED, LAMP]),
        ("agentworld-sft", "agentworld", "mcp", [HALL, IN_PART, FAILED, LAMP]),
    ],
)
def test_failed_actions_are_learnt_as_the_kinds_method_says(kind, method, prompts, expected, tmp_path):
    assert list(learnt(filtered(tmp_path, method), kind, prompts)) == expected


def test_a_dialogue_shows_what_a_filter_marked_and_does_not_learn_it(tmp_path):
    """An answer to actions of which a part took effect: what follows needs it."""
    path = filtered(tmp_path, "rwml")
    (sample,) = samples(path, "word2world")
    assert IN_PART in [message["content"] for message in sample.messages]
    assert list(learnt(path, "word2world")) == [HALL, LAMP]


def test_the_turns_of_a_trajectory_without_a_source_are_not_hashed_for_each_of_them(tmp_path, monkeypatch):
    step = Turn(action=Action(text="a"), observations=(Observation(kind="environment", text="b"),))
    write([Trajectory(turns=(step,) * 50)], tmp_path / "a.jsonl")
    (tmp_path / "a.easy.jsonl").write_text('{"trajectory": "", "turn": 0, "call": null, "easy": true, "kept": true}')
    named = []
    for module in (kinds, summary):
        monkeypatch.setattr(module, "identity", lambda one: named.append(one) or identity(one))
    assert list(samples(tmp_path / "a.jsonl", "word2world", turn_information=True))
    summary.summarize(tmp_path / "a.jsonl", summary.Summary())
    assert len(named) <= 4


@pytest.mark.parametrize("kind", ["rwml", "agentworld"])
def test_the_history_of_transitions_is_cut_as_that_of_trajectories(kind, tmp_path):
    trajectories, transitions = filtered(tmp_path, "word2world"), tmp_path / "t.jsonl"
    write_transitions(expand(read(trajectories)), transitions)
    for history in (0, 1, None):
        prompts = [
            [sample.messages for sample in samples(path, kind, history=history, prompts="mcp")]
            for path in (trajectories, transitions)
        ]
        assert prompts[0] == prompts[1]


def test_what_agents_did_and_no_row_has_is_counted(tmp_path):
    def played(row, *words, task="", success: bool | None = True, train=True):
        turns = tuple(Turn(action=Action(text=word), train=train) for word in words)
        source = Source(format="wm", file="f", row=row)
        return Trajectory(turns=turns, task_id=task, success=success, source=source)

    cases = [played(0, "a", task="1"), played(1, "b", task="1"), played(2, "a", task="1")]
    cases += [played(3), played(4, "c", train=False), played(5, "d", success=False), played(6, "d", success=None)]
    write(cases, tmp_path / "x.jsonl")
    silent = {"nothing said": 1, "no target": 1}
    failed = {"no success": 1, "unknown success": 1, "duplicate": 1}
    for kind, options, expected in (
        ("imitation", {}, silent),
        ("rft", {}, silent | failed),
        ("rft", {"per_task": 1}, silent | failed | {"per_task": 1}),
    ):
        left = Exclusions()
        made = list(samples(tmp_path / "x.jsonl", kind, exclusions=left, **options))
        assert left.reasons == expected
        assert len(made) + left.reasons.total() == len(cases)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "imitation",
            {"prompts": "rwml"},
            "imitation has no option prompts, which is for rwml-sft, rwml, .*: leave it out",
        ),
        ("rwml", {"turn_information": True}, "rwml has no option turn_information, which is for rwml-sft, word2world"),
        ("word2world", {"corpora": ["x.txt"]}, "word2world has no option corpora, which is for cpt: leave it out"),
        ("rwm", {}, "there is no kind 'rwm'; did you mean 'rwml'"),
        ("rwml", {"hystory": 1}, "no field 'hystory'; did you mean 'history'"),
        ("cpt", {}, "cpt needs prompts: name a domain"),
    ],
)
def test_a_kind_refuses_what_it_does_not_have(kind, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        samples(filtered(tmp_path, "word2world"), kind, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_given_is_not_refused(kind):
    absent = {"prompts": None, "history": None, "turn_information": False, "world_context": None, "corpora": []}
    made = kind_of(kind, **absent, domain=None, threshold=None, per_task=None, seed=3)
    assert (made.name, made.seed) == (kind, 3)
    assert made == KINDS[kind](seed=3)
