"""A maze without loops (Prim's algorithm), 11x11 cells as a standard and 15x15 as a hard task: one way leads to the goal.

An observation is the rows joined by newlines and one status mark. `#` wall, `.` floor, `A` agent, `G` goal, `P` agent on the
goal; `>` your move, `!` the episode is over. With the view `wmact` the symbols are the paper's: no border, cells apart by a
space, `*` wall, `o` floor, `P` agent (on the goal too, which the paper leaves open), `X` goal. A board is a dataset column, so
only making levels needs `mazelib`.
"""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.worlds.kit.actions import ActionEnvironment, call_of, wandering
from wm_plugin.worlds.kit.actions import distances as steps_to
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import Rows, check_level, draws, rows_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 30
LEVELS = {"standard": 11, "hard-1": 15}  # cells a side
MOVES = "UDLR"
NOTHING = "no operation"
# WMAct's names of the moves, which either view takes
ACTIONS = {"move up": "U", "move down": "D", "move left": "L", "move right": "R"}
VIEWS = ("plain", "wmact")
_WMACT = str.maketrans("#.AG", "*oPX")
_DRAWN = b".#" + bytes(254)  # of mazelib's 0 and 1

INSTRUCTION, WMACT_INSTRUCTION = SPECS["maze"].instruction, SPECS["maze"].other_instruction


@described_as("maze")
class MazeEnvironment(ActionEnvironment):
    """One episode: at most `max_turns` turns of one move or several; reward 1 for reaching the goal."""

    _known = (*MOVES.lower(), *ACTIONS, NOTHING)
    _max_actions = 200  # a whole way of the largest level in one turn, and more

    _board: str
    _agent: int
    _goal: int
    _view: str

    def reset(self, board: str, max_turns: int | None = None, view: str | None = None, **_: Any) -> str:
        """Start at `board`, rows of `#.AG` joined by newlines, and return the first observation. `view` is one of `VIEWS`."""
        if not isinstance(board, str) or board.count("A") != 1 or board.count("G") != 1:
            raise UserError("A maze's column `board` needs one A (the agent) and one G (the goal)")
        self._view = _view(view)
        self._agent, self._goal = board.index("A"), board.index("G")
        self._board = board.replace("A", ".").replace("G", ".")
        return self._start(turn_limit(max_turns, MAX_TURNS))

    def move(self, direction: str) -> str:
        return self._act(direction)

    def _apply(self, action: str) -> bool:
        if action != NOTHING:
            self._agent = step(self._board, self._agent, ACTIONS.get(action, action.upper()))
        self._end_at(self._agent == self._goal)
        return True

    def _state(self) -> int:
        return self._agent

    def _observation(self) -> str:
        cells = list(self._board)
        cells[self._goal] = "G"
        cells[self._agent] = "P" if self.success else "A"
        board = "".join(cells)
        return (draw_as_wmact(board) if self._view == "wmact" else board) + self._mark


def _view(view: Any) -> str:
    """Return the view in a row's column; None and NaN, an empty cell of a table, mean the plain one."""
    name = VIEWS[0] if view is None or (isinstance(view, float) and view != view) else view
    if not isinstance(name, str) or name not in VIEWS:
        raise UserError(f"A maze's column `view` is {shown(view)}; write {' or '.join(VIEWS)}")
    return name


def draw_as_wmact(board: str) -> str:
    """Draw a board of `#.AGP` in the paper's symbols, without its border if that is all wall."""
    rows = board.split("\n")
    if not set(rows[0] + rows[-1]).union(*(row[:1] + row[-1:] for row in rows)) - {"#"}:
        rows = [row[1:-1] for row in rows[1:-1]]
    return "\n".join(" ".join(row.translate(_WMACT)) for row in rows)


def step(board: str, position: int, direction: str) -> int:
    """Return the index in `board` after a move from `position`: the same one at a wall or at the edge."""
    stride = board.find("\n") + 1 or len(board)  # a row and its newline, so that one index names a cell
    target = position + {"U": -stride, "D": stride, "L": -1, "R": 1}[direction]
    return target if 0 <= target < len(board) and board[target] not in "#\n" else position


def distances(board: str, goal: int) -> dict[int, int]:
    """Count the moves to the goal from every cell that can reach it."""
    return steps_to(goal, lambda position: [step(board, position, move) for move in MOVES])


def make_boards(count: int, seed: int, *, size: int = 11, held_out: bool = False) -> list[str]:
    """Make `count` boards of `size` x `size` cells, the border included; `size` is odd and at least 7.

    The start is one of the four corners and the goal the cell farthest from it, as in WMAct. About 1 in 100 boards of size 11 and
    4 in 9 of size 15 take more than 30 moves (at most 54 in 300 boards), so 30 turns need several moves a turn. The walls decide
    the split (1 layout in 10 is held out).
    """
    if size < 7 or size % 2 == 0:
        raise UserError(f"A maze's size is an odd number from 7 on, not {size}")
    rng = draws(seed, held_out)
    boards: list[str] = []
    row = size + 1  # characters, its newline included
    corners = [r * row + c for r in (1, size - 2) for c in (1, size - 2)]  # Prim's mazes have floor in all four
    with _own_generators():
        while len(boards) < count:
            walls = _prim_maze(size, rng.getrandbits(32))
            if (zlib.crc32(walls.encode()) % 10 == 0) != held_out:
                continue
            start = rng.choice(corners)
            distance = distances(walls, start)
            cells = list(walls)
            cells[start], cells[max(distance, key=distance.__getitem__)] = "A", "G"
            boards.append("".join(cells))
    return boards


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    max_turns: int = MAX_TURNS,
    view: str = "plain",
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation to the prompt.

    With `max_turns` 1 the whole plan is one turn: WMAct's EntirePlan in training, and its single-turn score in evaluation.
    """
    check_level(level, LEVELS, "maze")
    paper = _view(view) == "wmact"
    boards = make_boards(count, seed, size=LEVELS[level], held_out=held_out)
    tasks = ({"board": board, "level": level} for board in boards)
    rows = rows_of(WMACT_INSTRUCTION if paper else INSTRUCTION, tasks, max_turns, MAX_TURNS)
    return [row | {"view": view} for row in rows] if paper else rows


def expert(per_turn: int = 1) -> Chooser:
    """Return a policy that takes a shortest way, `per_turn` moves a turn or as many as it needs to arrive in time."""

    def choose(environment: MazeEnvironment) -> ToolCall | None:
        distance = distances(environment._board, environment._goal)
        position, moves = environment._agent, ""
        turns = environment.max_turns - environment.turns
        at_once = max(per_turn, -(-distance.get(position, 0) // max(turns, 1)))
        while len(moves) < at_once and distance.get(position):
            ways = {move: step(environment._board, position, move) for move in MOVES}
            moves += next(move for move, to in ways.items() if distance[to] < distance[position])
            position = ways[moves[-1]]
        return call_of(moves, "move", "direction")

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that moves anywhere, up to three cells a turn."""
    return wandering(rng, MOVES, "move", "direction")


def _prim_maze(size: int, seed: int) -> str:
    """Make the walls and floor of one maze: rows of `#.` joined by newlines. Seeds both global generators."""
    prims, seed_numpy = _mazelib()
    random.seed(seed)
    seed_numpy(seed)
    cells = prims(size // 2, size // 2).generate().tobytes().translate(_DRAWN).decode()
    return "\n".join(cells[row : row + size] for row in range(0, size * size, size))


@cache
def _mazelib() -> tuple[Any, Any]:
    """Import mazelib's generator, and the function that seeds numpy, from which it draws half of its numbers."""
    try:
        from mazelib.generate.Prims import Prims
        from numpy.random import seed
    except ImportError:
        raise MissingExtraError("Making maze levels", "mazelib", "maze") from None
    return Prims, seed


@contextmanager
def _own_generators() -> Iterator[None]:
    """Restore both global random generators afterwards, from which mazelib draws."""
    _mazelib()
    import numpy

    state, numpy_state = random.getstate(), numpy.random.get_state()  # these cost as much as a maze
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)
