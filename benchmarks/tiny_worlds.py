"""Worlds for the tiny policy: boards of 4x4 cells, four moves of one token each, and other laws of motion.

`look_ahead.py` trains the tiny policy in each of `WORLDS`. All share one tokenizer, template and training. `reproduce.yaml` names
the one whose rule is hidden.
"""

import zlib
from dataclasses import dataclass
from typing import Any

from wm_plugin.lab.tiny.warm_start import boards_of
from wm_plugin.worlds.grid import MOVES, SIZE, GridEnvironment, step

OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}


class IceEnvironment(GridEnvironment):
    """A frozen grid: a move slides to the last cell before a wall or the edge. The goal counts only where a slide ends."""

    @staticmethod
    def _step(cells: list[str], position: int, direction: str) -> int:
        while (after := step(cells, position, direction)) != position:
            position = after
        return position


class RingEnvironment(GridEnvironment):
    """A grid without edges: leaving at one side means entering at the other."""

    @staticmethod
    def _step(cells: list[str], position: int, direction: str) -> int:
        down, right = MOVES[direction]
        after = (position // SIZE + down) % SIZE * SIZE + (position % SIZE + right) % SIZE
        return position if cells[after] == "#" else after


class MirrorEnvironment(GridEnvironment):
    """A grid with a hidden rule: on half of the boards every move goes the opposite way, and only what follows a move tells."""

    def reset(self, board: str, max_turns: int | None = None, **more: Any) -> str:
        self._mirrored = zlib.crc32(board.encode()) % 2 == 1  # of the start, so that a board has one rule in every arm
        return super().reset(board, max_turns, **more)

    def _step(self, cells: list[str], position: int, direction: str) -> int:
        return step(cells, position, OPPOSITE[direction] if self._mirrored else direction)


@dataclass(frozen=True)
class TinyWorld:
    """A world that the tiny policy can learn."""

    name: str
    environment: type[GridEnvironment]

    def boards(self, count: int, seed: int, *, held_out: bool = False) -> list[str]:
        """Make boards whose goal is 1 to 6 moves away; a tenth of the wall layouts is held out."""
        return boards_of(self.environment, count, seed, held_out=held_out)

    def rows(self, count: int, seed: int, *, held_out: bool = False) -> list[dict[str, Any]]:
        """Make rows to play, whose whole prompt is the first observation."""
        prompt = [{"role": "user", "content": ""}]
        return [{"prompt": prompt, "board": board} for board in self.boards(count, seed, held_out=held_out)]


GRID = TinyWorld("grid", GridEnvironment)
WORLDS = {one.name: one for one in (GRID, TinyWorld("ice", IceEnvironment), TinyWorld("ring", RingEnvironment))}
