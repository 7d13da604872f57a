import random

from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds import grid

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


@st.composite
def boards(draw: st.DrawFn) -> str:
    cells = draw(st.lists(st.sampled_from("#..."), min_size=16, max_size=16))
    agent, goal = draw(st.lists(st.integers(0, 15), min_size=2, max_size=2, unique=True))
    cells[agent], cells[goal] = "A", "G"
    return "\n".join("".join(cells[row : row + 4]) for row in range(0, 16, 4))


def naive_observations(board: str, moves: list[str]) -> list[str]:
    """The observations of an episode, with coordinates and a fresh drawing each time."""
    rows = board.split("\n")
    where = {cell: (r, c) for r, row in enumerate(rows) for c, cell in enumerate(row)}
    (r, c), goal = where["A"], where["G"]
    observations = []
    for turn, move in enumerate(["", *moves]):
        if move:
            to_r, to_c = r + MOVES[move][0], c + MOVES[move][1]
            if to_r in range(4) and to_c in range(4) and rows[to_r][to_c] != "#":
                r, c = to_r, to_c
        picture = [["#" if cell == "#" else "." for cell in row] for row in rows]
        picture[goal[0]][goal[1]] = "G"
        picture[r][c] = "P" if (r, c) == goal else "A"
        over = (r, c) == goal or turn == 6
        observations.append("\n".join(map("".join, picture)) + ("!" if over else ">"))
        if over:
            break
    return observations


@settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)
@given(boards(), st.lists(st.sampled_from("UDLR"), min_size=6, max_size=6))
def test_moves_agree_with_a_naive_reference(board: str, moves: list[str]) -> None:
    environment = grid.GridEnvironment()
    observations = [environment.reset(board)]
    while not environment.over:
        observations.append(environment.move(moves[environment.turns]))
    assert observations == naive_observations(board, moves)
    assert environment.get_reward() == float(observations[-1].count("P"))


def test_the_expert_takes_the_shortest_way_on_every_board() -> None:
    for board in grid.make_boards(200, seed=3):
        cells = [cell for cell in board if cell != "\n"]
        shortest = grid.distances(cells, cells.index("G"))[cells.index("A")]
        episode = grid.walk(board, grid.expert(random.Random(0)))
        assert len(episode) == 2 * shortest + 1
        assert "P" in episode[-1]


def test_the_split_follows_the_walls_alone() -> None:
    train, held_out = (
        {board.translate({65: ".", 71: "."}) for board in grid.make_boards(2000, 0, held_out=h)} for h in (False, True)
    )
    assert len(held_out) > 20
    assert not train & held_out
    assert all("#" in board for board in train | held_out)  # the layout without walls was 42% of the held-out boards
