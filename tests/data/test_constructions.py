"""What is made of trajectories of our own environments, and which messages of it count."""

import gzip
import json
import random
from functools import partial

import pytest

from support.formats import says, user
from wm_plugin.data import Trajectory
from wm_plugin.data.constructions import documents, imitation, rft
from wm_plugin.data.filter import Filter
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Action, Call, Turn
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.worlds import grid, sql
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.sql import SqlEnvironment

pytest.importorskip("transformers")

pytestmark = pytest.mark.host


def walks(count, policy=grid.expert, seed=0):
    rng = random.Random(seed)
    return [play(GridEnvironment(), row, scripted(policy(rng)), max_turns=6) for row in grid.dataset_rows(count, seed)]


def test_imitation_trains_on_all_that_the_expert_did():
    row = sql.dataset_rows(1)[0]
    expert = play(SqlEnvironment(), row, scripted(sql.expert()), max_turns=12)
    (sample,) = imitation([expert])
    roles = [message["role"] for message in sample.messages]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]
    assert sample.train == [role == "assistant" for role in roles]
    assert sample.messages[0]["content"] == row["prompt"][0]["content"] + "The database is open."
    assert json.loads(sample.messages[1]["tool_calls"][0]["function"]["arguments"]) == {}
    assert sample.tools[0]["function"]["name"] == "describe_table"
    assert sample.columns["construction"] == "imitation"
    assert sample.columns["task_id"] == expert.task_id


def test_an_empty_message_does_not_count():
    made = Trajectory(turns=tuple(Turn(action=Action(text=text)) for text in ("a", " ", "b")))
    (sample,) = imitation([made])
    assert sample.train == [True, False, True]
    assert list(imitation([Trajectory(turns=())])) == []


def test_what_a_source_says_not_to_train_on_does_not_count(tmp_path):
    """Whatever filters have taken before it."""
    share = [
        ("human", "go", None),
        ("gpt", "", True),
        ("gpt", "good", True),
        ("human", "ok", None),
        ("gpt", "BAD", False),
    ]
    rows = {
        "sharegpt": {"conversations": [dict(zip(("from", "value", "loss"), one, strict=True)) for one in share]},
        "openai": {"messages": [user("go"), says(""), says("good", weight=1), user("ok"), says("BAD", weight=0)]},
    }
    for name, row in rows.items():
        (tmp_path / "x.jsonl").write_text(json.dumps(row))
        write(Filter(["empty_actions"])(read(tmp_path / "x.jsonl", name)), tmp_path / "left.jsonl")
        for construction in (imitation, partial(rft, threshold=0)):
            played = [one.model_copy(update={"reward": 1.0}) for one in read(tmp_path / "left.jsonl")]
            (sample,) = construction(played)
            counted = [m["content"] for m, counts in zip(sample.messages, sample.train, strict=True) if counts]
            assert counted == ["good"]
            assert sample.messages[-1]["content"] == "BAD"


def test_rft_takes_successes_once():
    wanderers = walks(60, grid.wanderer)
    won = [trajectory for trajectory in wanderers if trajectory.success]
    assert 5 < len(won) < 55
    samples = list(rft([*wanderers, *won]))
    assert [s.columns["trajectory"] for s in samples] == [s.columns["trajectory"] for s in imitation(won)]
    assert {sample.columns["construction"] for sample in samples} == {"rft"}


def test_rft_by_reward():
    rewards = [None, 0.2, 0.5, 0.9]
    made = [Trajectory(turns=(Turn(action=Action(text=str(r))),), reward=r, task_id=str(r)) for r in rewards]
    assert [sample.columns["task_id"] for sample in rft(made, threshold=0.5)] == ["0.5", "0.9"]


def test_rft_sees_duplicates_through_ids_and_sources():
    def made(identity, thought=None):
        action = Action(calls=(Call(name="f", arguments={"b": 1, "a": 2}, id=identity),), thought=thought)
        return Trajectory(turns=(Turn(action=action),), success=True, metadata={"run": identity})

    assert len(list(rft([made("x"), made("y")]))) == 1
    assert len(list(rft([made("x"), made("x", thought="Hm.")]))) == 2


def test_rft_caps_tasks_by_a_fixed_draw():
    made = [
        Trajectory(turns=(Turn(action=Action(text=f"{task}{n}")),), success=True, task_id=task)
        for task in "ab"
        for n in range(8)
    ]

    def chosen(trajectories, **options):
        return [sample.messages[0]["content"] for sample in rft(trajectories, **options)]

    three = chosen(made, per_task=3)
    assert [text[0] for text in three] == ["a"] * 3 + ["b"] * 3
    assert three == sorted(three)  # in the order of the files
    assert set(chosen(made[::-1], per_task=3)) == set(three)
    assert set(chosen(made, per_task=2)) < set(three)
    assert any(set(chosen(made, per_task=3, seed=seed)) != set(three) for seed in (1, 2))
    assert chosen(made, per_task=9) == chosen(made)
    with pytest.raises(UserError, match="per_task is 0"):
        rft(made, per_task=0)


def test_documents_count_whole(tmp_path):
    (tmp_path / "a.txt").write_text("A kettle\n\nboils.")
    (tmp_path / "b.md").write_text("# Law\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "c.jsonl").write_text('{"text": "one", "id": 3}\n\n{"text": "two"}\n')
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\n'))
    names = ("a.txt", "b.md", "empty.txt", "c.jsonl", "d.jsonl.gz")
    samples = list(documents(tmp_path / name for name in names))
    assert [sample.messages for sample in samples] == [
        [{"role": "assistant", "content": text}] for text in ("A kettle\n\nboils.", "# Law\n", "one", "two", "three")
    ]
    assert all(sample.train == [True] for sample in samples)
    assert [sample.columns["task_id"] for sample in samples][-2:] == ["c.jsonl/1", "d.jsonl.gz/0"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"x", "texts are .txt, .md or .jsonl files"),
        ("a.txt", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("a.jsonl", b'{"text": "x"}\n{"txt": "x"}\n', "row 1: no field `text` that holds a text"),
        ("a.jsonl", b"{\n", "row 0: not JSON"),
        ("a.txt", None, "No such file"),
    ],
)
def test_bad_documents_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        list(documents([tmp_path / name]))
    assert name in str(caught.value)
