"""What other actions than the expert's bring about."""

import random
from collections import Counter

import pytest

from wm_plugin.data import expand
from wm_plugin.data.schema import Action, Call
from wm_plugin.lab.agents.alternatives import iwm
from wm_plugin.worlds import grid, sql
from wm_plugin.worlds.agents import play
from wm_plugin.worlds.agents.scripted import directions, scripted
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.sql import SqlEnvironment

pytest.importorskip("transformers")

pytestmark = pytest.mark.host


def walks(count, policy=grid.expert, seed=0):
    rng = random.Random(seed)
    return [play(GridEnvironment(), row, scripted(policy(rng)), max_turns=6) for row in grid.dataset_rows(count, seed)]


def test_implicit_world_modelling_shows_what_other_moves_would_have_done():
    (expert,) = walks(1, seed=3)
    counts = Counter()
    transitions = list(iwm([expert], GridEnvironment(), directions(random.Random(0)), alternatives=3, counts=counts))
    assert transitions[0] == next(expand([expert]))
    assert len({t.trajectory for t in transitions}) == 1
    at_turn = [[t for t in transitions if t.turn == number] for number in range(len(expert.turns))]
    for number, siblings in enumerate(at_turn):
        moves = [t.action.calls[0].arguments["direction"] for t in siblings]
        assert len(set(moves)) == len(moves)
        assert 3 <= len(moves) <= 4  # three were proposed, and one of them may be the expert's
        for t in siblings:
            assert t.history == expert.turns[:number]
            cells = [cell for turn in expert.turns[:number] for cell in turn.observations[-1:]]
            board = (cells[-1].text if cells else expert.context.initial_state)[:-1]
            world = GridEnvironment()
            world.reset(board)
            world.turns = number
            assert t.observation.text == world.move(t.action.calls[0].arguments["direction"])
    assert counts == {"expert": len(expert.turns), "alternative": len(transitions) - len(expert.turns)}
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
    transitions = list(iwm([expert], SqlEnvironment(), propose, counts=counts))
    others = [t for t in transitions if t.turn == 0][1:]
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
    older = expert.model_copy(update={"metadata": expert.metadata | {"reset": {"level": 1}}})
    counts = Counter()
    proposals = directions(random.Random(0))
    assert list(iwm([moody], Moody(), proposals, counts=counts)) == []
    assert list(iwm([changed, other, older], GridEnvironment(), proposals, counts=counts)) == []
    assert counts == {"does not replay": 3, "of another environment": 1}


class Indexed(GridEnvironment):
    """Takes the number of a board, and fails on other rows as it happens to."""

    def reset(self, number: int) -> str:
        return super().reset(BOARDS[number])


BOARDS = [row["board"] for row in grid.dataset_rows(2, 0)]


@pytest.mark.parametrize("number", [2, "0", None, [0]])
def test_a_row_on_which_the_world_fails_is_left_out_and_counted(number):
    expert = play(Indexed(), {"number": 0}, scripted(grid.expert(random.Random(0))), max_turns=6)
    odd = expert.model_copy(update={"metadata": expert.metadata | {"reset": {"number": number}}})
    counts = Counter()
    list(iwm([odd, expert], Indexed(), directions(random.Random(0)), counts=counts))
    assert (counts["does not replay"], counts["expert"]) == (1, len(expert.turns))
