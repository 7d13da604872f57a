"""A 4x4 grid with walls: walk from the agent to the goal. Small enough that a model of 0.15M parameters learns to predict it.

An observation is the rows joined by newlines and one status mark. `#` wall, `.` floor, `A` agent, `G` goal, `P` agent on the
goal; `>` your move, `!` the episode is over.
"""

import random
from collections.abc import Callable
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.actions import ActionEnvironment
from wm_plugin.worlds.kit.actions import distances as steps_to
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import Rows, check_level, draws, row_text, turn_limit
from wm_plugin.worlds.specs import described_as

SIZE = 4
MAX_TURNS = 6
LEVELS = ("standard",)
INSTRUCTION = ""  # the board is the whole prompt
Step = Callable[[list[str], int, str], int]  # (cells, a position, a direction) -> the position after a move
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


@described_as("grid")
class GridEnvironment(ActionEnvironment):
    """One episode: at most `max_turns` moves, one a turn; reward 1 for reaching the goal."""

    _known = ("u", "d", "l", "r")
    _max_actions = 1

    @staticmethod
    def _step(cells: list[str], position: int, direction: str) -> int:
        return step(cells, position, direction)

    _cells: list[str]
    _agent: int
    _goal: int

    def reset(self, board: str, max_turns: int | None = None, **_: Any) -> str:
        """Start at `board`, 4x4 cells with one `A` and one `G`, and return the first observation."""
        cells = [cell for cell in row_text(board, "board", "grid") if cell != "\n"]
        if len(cells) != SIZE * SIZE or set(cells) - set("#.AG") or cells.count("A") != 1 or cells.count("G") != 1:
            raise UserError("A grid's column `board` needs 4 rows of 4 cells # . A G, with one A and one G")
        self._cells, self._agent, self._goal = cells, cells.index("A"), cells.index("G")
        return self._start(turn_limit(max_turns, MAX_TURNS))

    def move(self, direction: str) -> str:
        return self._act(direction)

    def _apply(self, action: str) -> bool:
        self._cells[self._agent] = "."
        self._agent = self._step(self._cells, self._agent, action.upper())
        self._end_at(self._agent == self._goal)
        self._cells[self._agent] = "P" if self.success else "A"
        return True

    def _state(self) -> int:
        return self._agent

    def _observation(self) -> str:
        return draw(self._cells) + self._mark

    def _best_moves(self) -> list[str]:
        """Return the moves that shorten the way to the goal."""
        distance = distances(self._cells, self._goal, self._step)
        here = distance.get(self._agent, 0)
        return [move for move in MOVES if distance.get(self._step(self._cells, self._agent, move), here) < here]


def draw(cells: list[str]) -> str:
    """Return the board as text: rows joined by newlines."""
    return "\n".join("".join(cells[row : row + SIZE]) for row in range(0, SIZE * SIZE, SIZE))


def step(cells: list[str], position: int, direction: str) -> int:
    """Return the cell after a move from `position`: the same one at a wall or at the edge."""
    row, column = position // SIZE + MOVES[direction][0], position % SIZE + MOVES[direction][1]
    inside = 0 <= row < SIZE and 0 <= column < SIZE
    return row * SIZE + column if inside and cells[row * SIZE + column] != "#" else position


def distances(cells: list[str], goal: int, moved: Step = step) -> dict[int, int]:
    """Count the moves to the goal from every cell that can reach it. `moved` need not be the same backwards."""
    before: dict[int, set[int]] = {}
    for position, cell in enumerate(cells):
        if cell != "#" and position != goal:
            for move in MOVES:
                before.setdefault(moved(cells, position, move), set()).add(position)
    return steps_to(goal, lambda position: sorted(before.get(position, ())))


def make_boards(
    count: int, seed: int, *, held_out: bool = False, wall_share: float = 0.15, moved: Step = step
) -> list[str]:
    """Make `count` boards whose goal is 1 to `MAX_TURNS` moves away.

    The wall layout decides the split (1 layout in 10 is held out). Each has a wall: the one without would be 8% of all
    boards, all in one split.
    """
    rng = draws(seed, held_out)
    boards: list[str] = []
    while len(boards) < count:
        cells = ["#" if rng.random() < wall_share else "." for _ in range(SIZE * SIZE)]
        if "#" not in cells or is_held_out(cells) != held_out:
            continue
        free = [index for index, cell in enumerate(cells) if cell == "."]
        for _ in range(4):  # four tasks a layout
            if len(free) < 2 or len(boards) == count:
                break
            agent, goal = rng.sample(free, 2)
            if 1 <= distances(cells, goal, moved).get(agent, MAX_TURNS + 1) <= MAX_TURNS:
                board = list(cells)
                board[agent], board[goal] = "A", "G"
                boards.append(draw(board))
    return boards


def is_held_out(cells: list[str]) -> bool:
    """Return whether a wall layout is held out, by a fixed hash of the walls' positions."""
    return sum((index + 1) * 2654435761 for index, cell in enumerate(cells) if cell == "#") % 97 % 10 == 0


def dataset_rows(count: int, seed: int = 0, held_out: bool = False, level: str = "standard") -> Rows:
    """Make rows for a trainer; the whole prompt is the first observation, which `reset` supplies."""
    check_level(level, LEVELS, "grid")
    boards = make_boards(count, seed, held_out=held_out)
    return [{"prompt": [{"role": "user", "content": ""}], "board": board} for board in boards]


def walk(
    board: str, choose: Chooser, max_turns: int = MAX_TURNS, world: type[GridEnvironment] = GridEnvironment
) -> list[str]:
    """Play an episode of at most `max_turns` moves: [observation, action, observation, ..., observation]."""
    environment = world()
    episode = [environment.reset(board)]
    while environment.turns < max_turns and not environment.over and (call := choose(environment)):
        direction = call[1]["direction"]
        episode += [direction, environment.move(direction)]
    return episode


def expert(rng: random.Random | None = None) -> Chooser:
    """Return a policy that takes a shortest way, a random one with `rng`, and gives up if there is none."""

    def choose(environment: GridEnvironment) -> ToolCall | None:
        moves = environment._best_moves()
        return ("move", {"direction": rng.choice(moves) if rng else moves[0]}) if moves else None

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that moves anywhere."""
    return lambda _: ("move", {"direction": rng.choice("UDLR")})
