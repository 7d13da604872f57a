"""What is made of trajectories of our own environments, and which messages of it count."""

import gzip
import json
import random
from collections import Counter

import pytest

from wm_plugin.agents import play
from wm_plugin.agents.scripted import call, directions, scripted
from wm_plugin.environments import grid, sql
from wm_plugin.environments.grid import GridEnvironment
from wm_plugin.environments.sql import SqlEnvironment
from wm_plugin.errors import UserError
from wm_plugin.trajectories import Trajectory, expand
from wm_plugin.trajectories.constructions import documents, imitation, iwm, rft
from wm_plugin.trajectories.schema import Action, Call, Turn

pytest.importorskip("transformers")


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
    assert list(rft(made)) == []
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


def test_implicit_world_modelling_shows_what_other_moves_would_have_done():
    (expert,) = walks(1, seed=3)
    counts = Counter()
    made = list(iwm([expert], GridEnvironment(), directions(random.Random(0)), alternatives=3, counts=counts))
    assert made[0] == next(expand([expert]))
    assert len({t.trajectory for t in made}) == 1
    at_turn = [[t for t in made if t.turn == number] for number in range(len(expert.turns))]
    for number, transitions in enumerate(at_turn):
        moves = [t.action.calls[0].arguments["direction"] for t in transitions]
        assert len(set(moves)) == len(moves)
        assert 3 <= len(moves) <= 4  # three were proposed, and one of them may be the expert's
        for t in transitions:
            assert t.history == expert.turns[:number]
            cells = [cell for turn in expert.turns[:number] for cell in turn.observations[-1:]]
            board = (cells[-1].text if cells else expert.context.initial_state)[:-1]
            world = GridEnvironment()
            world.reset(board)
            world.turns = number
            assert t.observation.text == world.move(t.action.calls[0].arguments["direction"])
    assert counts == {"expert": len(expert.turns), "alternative": len(made) - len(expert.turns)}
    assert list(iwm([expert], GridEnvironment(), directions(random.Random(0)), alternatives=0)) == list(
        expand([expert])
    )


def test_an_alternative_of_several_calls_or_errors_is_all_shown():
    expert = play(SqlEnvironment(), sql.dataset_rows(1)[0], scripted(sql.expert()), max_turns=12)

    def propose(trajectory, environment, count):
        assert environment.turns == sum(len(turn.observations) for turn in trajectory.turns)
        broken = Action(calls=(Call(name="run_query", arguments={"query": "SELEC"}), Call(name="fly", arguments={})))
        return [broken, Action(text="I give up."), broken]

    counts = Counter()
    made = list(iwm([expert], SqlEnvironment(), propose, counts=counts))
    others = [t for t in made if t.turn == 0][1:]
    assert [(t.observation.call, t.observation.error) for t in others] == [(0, False), (1, True)]
    assert "syntax error" in others[0].observation.text
    assert counts["alternative"] == 2 * len(expert.turns)  # what is said brings about nothing here


class Moody(GridEnvironment):
    """Shows something else each time."""

    moods = iter(range(10**6))

    def move(self, direction: str) -> str:
        """Move.

        Args:
            direction: Where to.
        """
        return f"{super().move(direction)} {next(self.moods)}"


def test_what_does_not_replay_is_left_out_and_counted():
    (expert,) = walks(1)
    moody = play(Moody(), expert.metadata["reset"], scripted(grid.expert(random.Random(0))), max_turns=6)
    changed = expert.model_copy(update={"turns": expert.turns[1:] or expert.turns * 2})
    other = expert.model_copy(update={"metadata": {}})
    counts = Counter()
    proposals = directions(random.Random(0))
    assert list(iwm([moody], Moody(), proposals, counts=counts)) == []
    assert list(iwm([changed, other], GridEnvironment(), proposals, counts=counts)) == []
    assert counts == {"does not replay": 2, "of another environment": 1}


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


def test_call_makes_an_action():
    assert call("move", direction="U").calls == (Call(name="move", arguments={"direction": "U"}),)
