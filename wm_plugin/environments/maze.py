"""A maze without loops (Prim's algorithm), 11x11 cells as a standard and 15x15 as a hard task: one way leads to the goal.

An observation is the rows joined by newlines and one status mark. `#` wall, `.` floor, `A` agent, `G` goal, `P` agent on the
goal; `>` your move, `!` the episode is over. A board is a dataset column, so only making levels needs `mazelib`.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError

MAX_TURNS = 30
MOVES = "UDLR"

INSTRUCTION = f"""You stand in a maze and have at most {MAX_TURNS} moves to get to the goal.
Map: # wall, . floor, A you, G goal. The mark after the map is > while you may move and ! when the episode is over.
Call move with U (one row up), D (one row down), L (left) or R (right); it shows the new map. A wall stops you, and the
move counts all the same.

"""


class MazeEnvironment:
    """One episode: at most `max_turns` moves; reward 1 for reaching the goal."""

    def __init__(self) -> None:
        self._board = ""
        self._agent = self._goal = -1
        self._max_turns = 0  # over until the first reset
        self.turns = 0
        self.success = False

    def reset(self, board: str, max_turns: int | None = None, **_: Any) -> str:
        """Start at `board` (rows of `#.AG` joined by newlines) and return the first observation.

        `max_turns` is `MAX_TURNS` unless the row says otherwise. A board without one `A` and one `G` is a `UserError`.
        """
        if board.count("A") != 1 or board.count("G") != 1:
            raise UserError("A maze's column `board` needs one A (the agent) and one G (the goal)")
        self._agent, self._goal = board.index("A"), board.index("G")
        self._board = board.replace("A", ".").replace("G", ".")
        self._max_turns = max_turns or MAX_TURNS
        self.turns, self.success = 0, False
        return self._observation()

    def move(self, direction: str) -> str:
        """Move one cell. Walking into a wall changes nothing.

        Args:
            direction: One of U, D, L, R.

        Returns:
            The new map.
        """
        if self.over:
            raise ValueError("The episode is over.")
        if direction not in list(MOVES):
            raise ValueError(f"There is no direction {str(direction)[:20]!r}; use U, D, L or R.")
        self.turns += 1
        self._agent = step(self._board, self._agent, direction)
        self.success = self._agent == self._goal
        return self._observation()

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def over(self) -> bool:
        return self.success or self.turns >= self._max_turns

    def _observation(self) -> str:
        cells = list(self._board)
        cells[self._goal] = "G"
        cells[self._agent] = "P" if self.success else "A"
        return "".join(cells) + ("!" if self.over else ">")

    def _best_moves(self) -> list[str]:
        """The moves that shorten the way to the goal: one in a maze without loops, none where the goal cannot be reached."""
        distance = distances(self._board, self._goal)
        here = distance.get(self._agent, 0)
        return [move for move in MOVES if distance.get(step(self._board, self._agent, move), here) < here]


def step(board: str, position: int, direction: str) -> int:
    """The index in `board` that a move from `position` ends at: the same one at a wall or at the edge."""
    stride = board.find("\n") + 1 or len(board)  # a row and its newline, so that one index names a cell
    target = position + {"U": -stride, "D": stride, "L": -1, "R": 1}[direction]
    return target if 0 <= target < len(board) and board[target] not in "#\n" else position


def distances(board: str, goal: int) -> dict[int, int]:
    """Moves to the goal from every cell that can reach it."""
    found, queue = {goal: 0}, [goal]
    for position in queue:
        for move in MOVES:
            neighbour = step(board, position, move)
            if neighbour not in found:
                found[neighbour] = found[position] + 1
                queue.append(neighbour)
    return found


def make_boards(count: int, seed: int, *, size: int = 11, held_out: bool = False) -> list[str]:
    """`count` boards of `size` x `size` cells, the border included; `size` is odd and at least 7.

    The start is any floor cell and the goal the cell farthest from it, as in WMAct. Levels that take more than `MAX_TURNS`
    moves are left out (about 1 in 300 of size 11, 1 in 6 of size 15). The walls decide the split (1 layout in 10 is held
    out), so that no held-out layout is ever trained on.
    """
    if size < 7 or size % 2 == 0:
        raise UserError(f"A maze's size is an odd number from 7 on, not {size}")
    rng = random.Random(seed * 2 + held_out)
    boards: list[str] = []
    while len(boards) < count:
        walls = _prim_maze(size, rng.getrandbits(32))
        if (zlib.crc32(walls.encode()) % 10 == 0) != held_out:
            continue
        start = rng.choice([index for index, cell in enumerate(walls) if cell == "."])
        distance = distances(walls, start)
        goal = max(distance, key=distance.__getitem__)
        if distance[goal] <= MAX_TURNS:
            cells = list(walls)
            cells[start], cells[goal] = "A", "G"
            boards.append("".join(cells))
    return boards


def dataset_rows(count: int, seed: int = 0, held_out: bool = False, size: int = 11) -> list[dict[str, Any]]:
    """Rows for a trainer: the prompt explains the task, and `reset` appends the first observation to it."""
    boards = make_boards(count, seed, size=size, held_out=held_out)
    return [{"prompt": [{"role": "user", "content": INSTRUCTION}], "board": board} for board in boards]


def expert(rng: random.Random) -> Callable[[MazeEnvironment], str]:
    """A policy that takes one of the shortest ways."""
    return lambda environment: rng.choice(environment._best_moves())


def _prim_maze(size: int, seed: int) -> str:
    """The walls and floor of one maze: rows of `#.` joined by newlines."""
    try:
        from mazelib.generate.Prims import Prims
    except ImportError:
        raise MissingExtraError("Making maze levels", "mazelib", "maze") from None
    with _seeded(seed):
        grid = Prims(size // 2, size // 2).generate()
    return "\n".join("".join("#" if cell else "." for cell in row) for row in grid)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed both global generators, which are all that mazelib draws from, and put the caller's state back afterwards."""
    import numpy

    state, numpy_state = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
