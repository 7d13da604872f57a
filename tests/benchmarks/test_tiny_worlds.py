"""The laws of motion of the tiny policy's worlds."""

import random

import pytest

pytest.importorskip("transformers")

from tiny_worlds import WORLDS, MirrorEnvironment
from wm_plugin.worlds.grid import MAX_TURNS, GridEnvironment, expert, make_boards, walk, wanderer

pytestmark = pytest.mark.host

BOARD = "A..G\n....\n.#..\n...."


def after(name: str, *moves: str, board: str = BOARD) -> str:
    environment = WORLDS[name].environment()
    environment.reset(board)
    return [environment.move(move) for move in moves][-1]


@pytest.mark.parametrize(
    ("name", "moves", "board"),
    [
        ("grid", "R", ".A.G\n....\n.#..\n....>"),
        ("grid", "U", "A..G\n....\n.#..\n....>"),
        ("ice", "R", "...P\n....\n.#..\n....!"),
        ("ice", "D", "...G\n....\n.#..\nA...>"),
        ("ice", "DRU", "...P\n....\n.#..\n....!"),
        ("ring", "L", "...P\n....\n.#..\n....!"),
        ("ring", "U", "...G\n....\n.#..\nA...>"),
        ("ring", "RU", "...G\n....\n.#..\n.A..>"),
        ("ring", "RUU", "...G\n....\n.#..\n.A..>"),
    ],
)
def test_a_move_does_what_the_law_says(name, moves, board):
    assert after(name, *moves) == board


def test_a_slide_passes_the_goal_and_leaves_it():
    board = "AG..\n....\n....\n...."
    assert after("ice", "R", board=board) == ".G.A\n....\n....\n....>"


@pytest.mark.parametrize("name", WORLDS)
def test_boards_can_be_won_and_experts_take_the_shortest_way(name):
    world = WORLDS[name]
    boards = world.boards(40, 1) + world.boards(10, 1, held_out=True)
    lengths = set()
    for board in boards:
        walked = walk(board, expert(random.Random(0)), MAX_TURNS, world.environment)
        assert walked[-1].endswith("!")
        assert "P" in walked[-1]
        assert {len(one) for one in walked[::2]} == {20}
        lengths.add(len(walked) // 2)
        others = [walk(board, wanderer(random.Random(n)), MAX_TURNS, world.environment) for n in range(5)]
        assert all("P" not in one[-1] or len(one) >= len(walked) for one in others)
    assert min(lengths) == 1
    assert max(lengths) > 2
    assert not {_walls(board) for board in boards[:40]} & {_walls(board) for board in boards[40:]}


def _walls(board: str) -> str:
    return "".join("#" if cell == "#" else "." for cell in board)


def test_a_hidden_rule_turns_every_move_around_on_half_of_the_boards_and_nothing_but_a_move_tells():
    boards = make_boards(200, 3)
    turned = [board for board in boards if after_of(board, "L") == after_of(board, "R", GridEnvironment)]
    straight = [board for board in boards if after_of(board, "L") == after_of(board, "L", GridEnvironment)]
    both = set(turned) & set(straight)  # a wall on either side
    assert set(turned) | set(straight) == set(boards)
    assert 60 < len(turned) - len(both) < 140
    for board in boards:
        environment = MirrorEnvironment()
        assert environment.reset(board) == GridEnvironment().reset(board)
        assert walk(board, expert(), world=MirrorEnvironment)[-1].endswith("!")
    there = next(board for board in turned if board not in both)
    environment = MirrorEnvironment()
    environment.reset(there)
    environment.move("R"), environment.move("L")  # the rule is that of the start
    assert environment.move("L") == GridEnvironment.move(_at(there), "R")


def after_of(board, move, world=MirrorEnvironment):
    environment = world()
    environment.reset(board)
    return environment.move(move)


def _at(board):
    environment = GridEnvironment()
    environment.reset(board)
    environment.move("L"), environment.move("R")
    return environment
