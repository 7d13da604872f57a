"""The laws of motion of the tiny policy's worlds."""

import random

import pytest

pytest.importorskip("transformers")

from tiny_worlds import WORLDS
from wm_plugin.worlds.grid import MAX_TURNS, expert, walk, wanderer

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
