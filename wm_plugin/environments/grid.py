"""A 4x4 open grid: walk from the agent to the goal. The smallest world that a model of 0.15M parameters can learn to predict.

An observation is the rows joined by newlines and one status mark. `#` wall, `.` floor, `A` agent, `G` goal, `P` agent on the
goal; `>` your move, `!` the episode is over.
"""

import random
from collections.abc import Callable
from typing import Any

SIZE = 4
MAX_TURNS = 6
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


class GridEnvironment:
    """One episode: at most `MAX_TURNS` moves; reward 1 for reaching the goal."""

    def __init__(self) -> None:
        self._cells: list[str] = []
        self._agent = self._goal = -1
        self.turns = 0
        self.success = False

    def reset(self, board: str, **_: Any) -> str:
        """Start at `board` (a dataset column made by `make_boards`) and return the first observation."""
        self._cells = [cell for cell in board if cell != "\n"]
        self._agent, self._goal = self._cells.index("A"), self._cells.index("G")
        self.turns, self.success = 0, False
        return self._observation()

    def move(self, direction: str) -> str:
        """Move the agent one cell.

        Args:
            direction: One of U, D, L, R.

        Returns:
            The new board.
        """
        if self.over:
            raise ValueError("The episode is over.")
        if direction not in list(MOVES):  # a list, because a model may send something that cannot be hashed
            raise ValueError(f"There is no direction {str(direction)[:20]!r}; use U, D, L or R.")
        self.turns += 1
        self._cells[self._agent] = "."
        self._agent = step(self._cells, self._agent, direction)
        self.success = self._agent == self._goal
        self._cells[self._agent] = "P" if self.success else "A"
        return self._observation()

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def over(self) -> bool:
        return self.success or self.turns >= MAX_TURNS

    def _observation(self) -> str:
        return draw(self._cells) + ("!" if self.over else ">")

    def _best_moves(self) -> list[str]:
        """The moves that shorten the way to the goal."""
        distance = distances(self._cells, self._goal)
        here = distance[self._agent]
        return [move for move in MOVES if distance[step(self._cells, self._agent, move)] < here]


def draw(cells: list[str]) -> str:
    return "\n".join("".join(cells[row : row + SIZE]) for row in range(0, SIZE * SIZE, SIZE))


def step(cells: list[str], position: int, direction: str) -> int:
    """The cell that a move from `position` ends in: the same one at a wall or at the edge."""
    row, column = position // SIZE + MOVES[direction][0], position % SIZE + MOVES[direction][1]
    inside = 0 <= row < SIZE and 0 <= column < SIZE
    return row * SIZE + column if inside and cells[row * SIZE + column] != "#" else position


def distances(cells: list[str], goal: int) -> dict[int, int]:
    """Moves to the goal from every cell that can reach it."""
    found, queue = {goal: 0}, [goal]
    for position in queue:
        for move in MOVES:
            neighbour = step(cells, position, move)
            if neighbour not in found:
                found[neighbour] = found[position] + 1
                queue.append(neighbour)
    return found


def make_boards(count: int, seed: int, *, held_out: bool = False, wall_share: float = 0.15) -> list[str]:
    """`count` boards whose goal is 1 to `MAX_TURNS` moves away.

    The wall layout decides the split (1 layout in 10 is held out), so that no held-out layout is ever trained on.
    """
    rng = random.Random(seed * 2 + held_out)
    boards: list[str] = []
    while len(boards) < count:
        cells = ["#" if rng.random() < wall_share else "." for _ in range(SIZE * SIZE)]
        if is_held_out(cells) != held_out:
            continue
        free = [index for index, cell in enumerate(cells) if cell == "."]
        for _ in range(4):  # four tasks a layout
            if len(free) < 2 or len(boards) == count:
                break
            agent, goal = rng.sample(free, 2)
            if 1 <= distances(cells, goal).get(agent, MAX_TURNS + 1) <= MAX_TURNS:
                board = list(cells)
                board[agent], board[goal] = "A", "G"
                boards.append(draw(board))
    return boards


def is_held_out(cells: list[str]) -> bool:
    """Whether a wall layout belongs to the held-out split: a fixed hash of the walls' positions."""
    return sum((index + 1) * 2654435761 for index, cell in enumerate(cells) if cell == "#") % 97 % 10 == 0


def dataset_rows(count: int, seed: int = 0, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows for a trainer: the whole prompt is the first observation, which `reset` supplies."""
    boards = make_boards(count, seed, held_out=held_out)
    return [{"prompt": [{"role": "user", "content": ""}], "board": board} for board in boards]


def walk(board: str, choose: Callable[[GridEnvironment], str], max_turns: int = MAX_TURNS) -> list[str]:
    """[observation, action, observation, ..., observation]: an episode of at most `max_turns` moves."""
    environment = GridEnvironment()
    episode = [environment.reset(board)]
    while environment.turns < max_turns and not environment.over:
        action = choose(environment)
        episode += [action, environment.move(action)]
    return episode


def expert(rng: random.Random) -> Callable[[GridEnvironment], str]:
    """A policy that takes one of the shortest ways."""
    return lambda environment: rng.choice(environment._best_moves())


def uniform(rng: random.Random) -> Callable[[GridEnvironment], str]:
    """A policy that moves anywhere."""
    return lambda _: rng.choice("UDLR")
