import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.worlds import maze

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def cells_of(board: str) -> dict[tuple[int, int], str]:
    return {(r, c): cell for r, row in enumerate(board.split("\n")) for c, cell in enumerate(row)}


def naive_distances(board: str, start: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Moves from `start`, one ring of cells at a time."""
    floor = {place for place, cell in cells_of(board).items() if cell != "#"}
    lengths, ring = {start: 0}, {start}
    while ring:
        ring = {(r + dr, c + dc) for r, c in ring for dr, dc in MOVES.values()} & floor - set(lengths)
        lengths |= dict.fromkeys(ring, max(lengths.values()) + 1)
    return lengths


@st.composite
def open_boards(draw: st.DrawFn) -> str:
    """Boards of any shape, with no border to rely on."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(2, 6))
    cells = draw(st.lists(st.sampled_from("#.."), min_size=height * width, max_size=height * width))
    agent, goal = draw(st.lists(st.integers(0, height * width - 1), min_size=2, max_size=2, unique=True))
    cells[agent], cells[goal] = "A", "G"
    return "\n".join("".join(cells[row * width : (row + 1) * width]) for row in range(height))


@settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)
@given(open_boards(), st.lists(st.sampled_from("UDLR"), min_size=9, max_size=9))
def test_moves_agree_with_a_naive_reference(board: str, moves: list[str]) -> None:
    cells = cells_of(board)
    goal = next(place for place, cell in cells.items() if cell == "G")
    agent = next(place for place, cell in cells.items() if cell == "A")
    environment = maze.MazeEnvironment()
    observation = environment.reset(board, max_turns=9)
    assert observation == board + ">"
    for turn, move in enumerate(moves, start=1):
        target = (agent[0] + MOVES[move][0], agent[1] + MOVES[move][1])
        if cells.get(target, "#") != "#":
            agent = target
        observation = environment.move(move)
        picture = cells | dict.fromkeys((place for place, cell in cells.items() if cell == "A"), ".")
        picture |= {goal: "G"} | {agent: "P" if agent == goal else "A"}
        assert cells_of(observation[:-1]) == picture
        assert environment.turns == turn
        assert environment.success == (agent == goal)
        assert (observation[-1] == "!") == environment.over == (agent == goal or turn == 9)
        if environment.over:
            break


@settings(max_examples=examples(200), derandomize=True, deadline=None, database=None)
@given(open_boards())
def test_distances_agree_with_a_naive_reference(board: str) -> None:
    width = board.find("\n") + 1 or len(board)
    lengths = maze.distances(board, board.index("G"))
    assert {divmod(index, width): moves for index, moves in lengths.items()} == naive_distances(
        board, divmod(board.index("G"), width)
    )


@pytest.mark.parametrize("size", [11, 15])
def test_a_level_is_a_perfect_maze_with_the_goal_at_its_far_end(size: int) -> None:
    pytest.importorskip("mazelib")
    for board in maze.make_boards(20, seed=1, size=size):
        cells = cells_of(board)
        floor = {place for place, cell in cells.items() if cell != "#"}
        assert set(cells) == {(r, c) for r in range(size) for c in range(size)}
        assert all(0 < r < size - 1 and 0 < c < size - 1 for r, c in floor)
        edges = sum((r + dr, c + dc) in floor for r, c in floor for dr, dc in ((1, 0), (0, 1)))
        assert edges == len(floor) - 1  # connected and without a loop
        agent = next(place for place, cell in cells.items() if cell == "A")
        assert set(agent) <= {1, size - 2}  # a corner
        distance = naive_distances(board, agent)
        assert set(distance) == floor
        goal = next(place for place, cell in cells.items() if cell == "G")
        assert distance[goal] == max(distance.values())


def test_starts_are_of_all_corners_and_long_levels_stay() -> None:
    pytest.importorskip("mazelib")
    boards = [row["board"] for row in maze.dataset_rows(60, level="hard-1")]
    assert {divmod(board.index("A"), 16) for board in boards} == {(r, c) for r in (1, 13) for c in (1, 13)}
    longest = max(boards, key=lambda board: max(maze.distances(board, board.index("G")).values()))
    shortest = maze.distances(longest, longest.index("G"))[longest.index("A")]
    assert shortest > maze.MAX_TURNS
    environment = maze.MazeEnvironment()
    for max_turns, per_turn in ((maze.MAX_TURNS, 1), (maze.MAX_TURNS, 4), (1, 1)):  # perhaps several moves a turn
        environment.reset(longest, max_turns=max_turns)
        while not environment.over:
            environment.move(maze.expert(per_turn)(environment)[1]["direction"])
        assert environment.success
        assert per_turn == 1 or environment.turns == -(-shortest // per_turn)
        assert environment.metrics == {"actions": shortest, "effective": shortest, "invalid": 0}


def test_several_moves_a_turn() -> None:
    environment = maze.MazeEnvironment()
    environment.reset("######\n#A..G#\n######")
    assert environment.move("L; r; fly; U") == "Invalid: 1 of 4\n######\n#.A.G#\n######>"
    assert environment.metrics == {"actions": 4, "effective": 1, "invalid": 1}
    assert environment.move("R; R; L") == "######\n#...P#\n######!"  # nothing is run after the goal
    assert environment.metrics == {"actions": 6, "effective": 3, "invalid": 1}


PAPER = """* * *
o o X
P * *>"""


def test_the_papers_actions_and_symbols() -> None:
    board = "#####\n####G\n#..##\n#A###\n#####"
    environment = maze.MazeEnvironment()
    for view in (None, float("nan"), "plain"):
        assert environment.reset(board, view=view) == board + ">"
    assert (
        environment.reset(board, view="wmact")
        == "# # # # #\n".replace("#", "*") + "* * * * X\n* o o * *\n* P * * *\n* * * * *>"
    )
    walled = "#####\n#####\n#..G#\n#A###\n#####"
    assert environment.reset(walled, view="wmact") == PAPER
    assert environment.move("move left; no operation; MOVE  UP; jump; r") == "Invalid: 1 of 5\n* * *\no P X\no * *>"
    assert environment.metrics == {"actions": 5, "effective": 2, "invalid": 1}
    assert environment.move("move right; move down") == "* * *\no o P\no * *!"
    assert environment.success


def test_rows_of_the_papers_view_say_its_legend() -> None:
    pytest.importorskip("mazelib")
    plain, paper = (maze.dataset_rows(1, view=view, max_turns=1)[0] for view in maze.VIEWS)
    assert paper == plain | {"view": "wmact", "prompt": paper["prompt"]}
    text = paper["prompt"][0]["content"]
    assert "in one turn" in text or "have one turn" in text
    assert all(name in text for name in (*maze.ACTIONS, maze.NOTHING, "X goal"))
    assert "G goal" in plain["prompt"][0]["content"]
    environment = maze.MazeEnvironment()
    rows = environment.reset(**paper).split("\n")
    assert len(rows) == 9
    assert all(len(row.rstrip(">").split(" ")) == 9 for row in rows)  # as the paper draws 11x11
    assert environment.max_turns == 1


def test_an_expert_gives_up_behind_walls() -> None:
    environment = maze.MazeEnvironment()
    environment.reset("#####\n#A#G#\n#####")
    assert maze.expert()(environment) is None


@pytest.mark.parametrize(
    "level", [pytest.param(level, marks=[pytest.mark.slow] if "hard" in level else []) for level in maze.LEVELS]
)
def test_256_levels_are_held_out(level: str) -> None:
    pytest.importorskip("mazelib")
    train, held_out = (
        {row["board"].translate({65: ".", 71: "."}) for row in maze.dataset_rows(256, 0, part, level)}
        for part in (False, True)
    )
    assert len(train) == len(held_out) == 256
    assert not train & held_out


def test_making_levels_leaves_the_global_generators_alone() -> None:
    pytest.importorskip("mazelib")
    numpy = pytest.importorskip("numpy")
    random.seed(5)
    numpy.random.seed(5)
    expected = (random.random(), numpy.random.random())
    random.seed(5)
    numpy.random.seed(5)
    first = maze.make_boards(3, seed=0)
    assert (random.random(), numpy.random.random()) == expected
    assert maze.make_boards(3, seed=0) == first  # nor do they have a say in the levels


@pytest.mark.parametrize("size", [5, 12, -3])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(UserError, match=str(size)):
        maze.make_boards(1, seed=0, size=size)


@pytest.mark.parametrize(("size", "share"), [(11, 0.01), (15, 4 / 9)])
def test_how_many_take_more_turns_than_30_of_one_move(size: int, share: float) -> None:
    """docs/wmact.md names both shares."""
    boards = maze.make_boards(400, 0, size=size)
    longer = sum(maze.distances(board, board.index("G"))[board.index("A")] > 30 for board in boards)
    assert longer / 400 == pytest.approx(share, abs=0.03)
    assert longer > 0
