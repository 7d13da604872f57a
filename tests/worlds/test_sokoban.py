import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds import sokoban
from wm_plugin.worlds.check import texts

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Cells = dict[tuple[int, int], str]


def cells_of(board: str) -> Cells:
    return {(r, c): cell for r, row in enumerate(board.split("\n")) for c, cell in enumerate(row)}


def naive_step(cells: Cells, action: str) -> Cells:
    """The same rules on a picture of the board: things leave a cell and enter the next."""
    if action == "no operation":
        return cells
    leave = {"P": ".", "+": "G", "B": ".", "*": "G"}
    verb, direction = action.split()
    r, c = next(place for place, cell in cells.items() if cell in "P+")
    dr, dc = STEPS[direction]
    here, ahead, behind = (r, c), (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
    after = dict(cells)
    if cells.get(ahead, "#") in "B*":
        if verb == "move" or cells.get(behind, "#") not in ".G":
            return cells
        after[behind] = {".": "B", "G": "*"}[cells[behind]]
        after[ahead] = leave[cells[ahead]]
    elif verb == "push" or cells.get(ahead, "#") == "#":
        return cells
    after[here] = leave[cells[here]]
    after[ahead] = {".": "P", "G": "+"}[after[ahead]]
    return after


def naive_shortest(board: str, most: int) -> int | None:
    """Actions to a solved board, one ring of pictures at a time; None where it takes more than `most`."""
    ring = {tuple(sorted(cells_of(board).items()))}
    visited = set(ring)
    for length in range(most + 1):
        if any("B" not in dict(state).values() for state in ring):
            return length
        ring = {
            tuple(sorted(naive_step(dict(state), action).items())) for state in ring for action in sokoban.ACTIONS
        } - visited
        visited |= ring
    return None


@st.composite
def open_boards(draw: st.DrawFn) -> str:
    """Boards of any shape, with no border to rely on, solvable or not."""
    height, width = draw(st.integers(1, 5)), draw(st.integers(3, 5))
    cells = draw(st.lists(st.sampled_from("#...."), min_size=height * width, max_size=height * width))
    places = draw(st.permutations(range(height * width)))
    boxes = draw(st.integers(1, max(1, min(3, height * width // 2 - 1))))
    for place in places[:boxes]:
        cells[place] = "G"
    goals_under = draw(st.integers(0, boxes - 1))  # so many boxes stand on a goal, the others beside
    for place in places[boxes - goals_under : 2 * boxes - goals_under]:
        cells[place] = "*" if cells[place] == "G" else "B"
    player = draw(st.sampled_from(places[2 * boxes - goals_under :] or [places[0]]))
    cells[player] = "+" if cells[player] == "G" else "P"
    return "\n".join("".join(cells[row * width : (row + 1) * width]) for row in range(height))


@settings(max_examples=examples(500), derandomize=True, deadline=None, database=None)
@given(
    open_boards(), st.lists(st.lists(st.sampled_from(sokoban.ACTIONS), min_size=1, max_size=6), min_size=5, max_size=5)
)
def test_actions_agree_with_a_naive_reference(board: str, turns: list[list[str]]) -> None:
    cells = cells_of(board)
    environment = sokoban.SokobanEnvironment()
    assert environment.reset(board, max_turns=5) == board + ">"
    counts = {"actions": 0, "effective": 0, "invalid": 0}
    for turn, actions in enumerate(turns, start=1):
        for action in actions:
            after = naive_step(cells, action)
            counts["actions"] += 1
            counts["effective"] += after != cells
            cells = after
            if "B" not in cells.values():
                break
        observation = environment.act("; ".join(actions))
        assert cells_of(observation[:-1]) == cells
        assert environment.metrics == counts
        assert environment.turns == turn
        assert environment.success == ("B" not in cells.values())
        assert (observation[-1] == "!") == environment.over == (environment.success or turn == 5)
        if environment.over:
            break


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(open_boards())
def test_a_solution_is_as_short_as_a_naive_search_finds(board: str) -> None:
    plan = sokoban.solve(*sokoban.read_board(board))
    assert (None if plan is None or len(plan) > 8 else len(plan)) == naive_shortest(board, 8)
    if plan:
        cells = cells_of(board)
        for action in plan:
            cells = naive_step(cells, action)
        assert "B" not in cells.values()


@pytest.mark.parametrize("level", list(sokoban.LEVELS))
def test_a_level_is_what_its_name_says_and_the_expert_wins_it(level: str) -> None:
    pytest.importorskip("reasoning_gym")
    side, boxes = sokoban.LEVELS[level]
    rows = sokoban.dataset_rows(8, seed=3, level=level)
    assert len({row["board"] for row in rows}) == 8
    for number, row in enumerate(rows):
        cells = cells_of(row["board"])
        assert set(cells) == {(r, c) for r in range(side) for c in range(side)}
        assert all(cell == "#" for (r, c), cell in cells.items() if r in (0, side - 1) or c in (0, side - 1))
        assert sum(cell in "B*" for cell in cells.values()) == boxes
        shortest = len(sokoban.solve(*sokoban.read_board(row["board"])) or [])
        assert 5 <= shortest <= 30
        per_turn = number % 3 + 1
        environment = sokoban.SokobanEnvironment()
        texts(environment, row, sokoban.expert(per_turn))
        assert (environment.success, environment.turns) == (True, -(-shortest // per_turn))
        assert environment.metrics == {"actions": shortest, "effective": shortest, "invalid": 0}


def test_a_stuck_box_has_no_solution() -> None:
    environment = sokoban.SokobanEnvironment()
    environment.reset("#####\n#.BP#\n#..G#\n#####")
    assert environment.act("push left") == "#####\n#BP.#\n#..G#\n#####>"
    assert sokoban.solve(environment._walls, environment._goals, environment._position) is None
    assert sokoban.expert()(environment) is None
    assert environment.act("no operation").endswith(">")
    assert environment.metrics == {"actions": 2, "effective": 1, "invalid": 0}


def test_moving_does_not_push_and_pushing_needs_a_box() -> None:
    environment = sokoban.SokobanEnvironment()
    environment.reset("PB.G")
    assert environment.act("move right; push left; push down; move up") == "PB.G>"
    assert environment.metrics == {"actions": 4, "effective": 0, "invalid": 0}
    assert environment.act("<action>Push right; PUSH  RIGHT; fly</action>") == "..P*!"
    assert environment.metrics == {"actions": 6, "effective": 2, "invalid": 0}
    assert environment.success


def test_levels_are_pinned_to_their_seed() -> None:
    """Another reasoning-gym must not change a data set silently."""
    pytest.importorskip("reasoning_gym")
    boards = sokoban.make_boards(5, seed=0)
    assert hashlib.sha256("\n\n".join(boards).encode()).hexdigest()[:16] == "015c8e3f58a7a1d9"
    assert boards != sokoban.make_boards(5, seed=1)
    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert sokoban.make_boards(5, seed=0) == boards
    assert random.random() == expected


def warehouses(boards: list[str]) -> set[tuple[str, frozenset[int]]]:
    return {sokoban.read_board(board)[:2] for board in boards}


def test_both_parts_have_the_same_rooms_and_no_warehouse_in_common() -> None:
    """Half of the boards share one room without inner walls, which was in training only."""
    pytest.importorskip("reasoning_gym")
    train, held_out = (sokoban.make_boards(40, 0, held_out=part) for part in (False, True))
    for boards in (train, held_out):
        assert 12 <= sum(board.count("#") == 24 for board in boards) <= 28
    assert len(warehouses(held_out)) > 20
    assert not warehouses(train) & warehouses(held_out)
    board = held_out[0]
    walls, goals, _ = sokoban.read_board(board)
    played = sokoban.SokobanEnvironment()
    played.reset(board)
    played.act("; ".join(sokoban.solve(*sokoban.read_board(board))[:4]))  # what an episode does not change decides
    assert sokoban.read_board(played._observation()[:-1])[:2] == (walls, goals)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(level, marks=pytest.mark.nightly if "hard" in level else pytest.mark.slow)
        for level in sokoban.LEVELS
    ],
)
def test_256_levels_are_held_out(level: str) -> None:
    pytest.importorskip("reasoning_gym")
    held_out = sokoban.make_boards(256, 0, level=level, held_out=True)
    train = sokoban.make_boards(256, 0, level=level)
    assert len(set(held_out)) == len(set(train)) == 256
    assert not warehouses(train) & warehouses(held_out)
    empty = [sum(b.count("#") == 4 * sokoban.LEVELS[level][0] - 4 for b in boards) for boards in (train, held_out)]
    assert abs(empty[0] - empty[1]) < 45  # of 256: three standard deviations of a difference by chance


def test_most_shortest_plans_cost_all_of_the_reward_at_a_tenth_an_action():
    """docs/wmact.md says so, of why the step penalty is one a turn."""
    plans = [sokoban.solve(*sokoban.read_board(board)) for board in sokoban.make_boards(40, 0)]
    assert sum(1 - 0.1 * len(plan) <= 0 for plan in plans) > 20
