"""Sokoban: push every box onto a goal. Moving and pushing are different actions, and a box in a corner is stuck for good.

An observation is the rows joined by newlines and one status mark. `#` wall, `.` floor, `P` player, `B` box, `G` goal, `*` box on
a goal, `+` player on a goal; `>` your turn, `!` the episode is over. A board is a dataset column, so only making levels needs
`reasoning-gym`.
"""

import random
import zlib
from collections.abc import Iterator
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.worlds.kit.actions import ActionEnvironment, call_of, shortest_plan, wandering
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.kit.rows import Rows, check_level, draws, rows_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 30
LEVELS = {"standard": (7, 2), "hard-1": (10, 2), "hard-2": (7, 3)}  # side and boxes, as in WMAct
SHORTEST, LONGEST = 5, 30  # bounds of a level's shortest solution, in actions; shorter ones need no plan
DIRECTIONS = ("up", "down", "left", "right")
NOTHING = "no operation"
ACTIONS = (*(f"{verb} {direction}" for verb in ("move", "push") for direction in DIRECTIONS), NOTHING)

INSTRUCTION = SPECS["sokoban"].instruction

_WITHOUT_BOXES = str.maketrans("P+B*", ".G.G")
Position = tuple[int, frozenset[int]]  # the player's cell and the boxes', as indices into the board


@described_as("sokoban")
class SokobanEnvironment(ActionEnvironment):
    """One episode: at most `max_turns` turns of several actions each; reward 1 for every box on a goal."""

    _known = ACTIONS
    _walls: str
    _goals: frozenset[int]
    _position: Position

    def reset(self, board: str, max_turns: int | None = None, **_: Any) -> str:
        """Start at `board`, rows of `#.PBG*+` joined by newlines, and return the first observation."""
        self._walls, self._goals, self._position = read_board(board)
        return self._start(turn_limit(max_turns, MAX_TURNS))

    def act(self, actions: str) -> str:
        return self._act(actions)

    def _apply(self, action: str) -> bool:
        self._position = step(self._walls, self._position, action)
        self._end_at(self._position[1] == self._goals)
        return True

    def _state(self) -> Position:
        return self._position

    def _observation(self) -> str:
        player, boxes = self._position
        cells = list(self._walls)
        for place in self._goals:
            cells[place] = "G"
        for place in boxes:
            cells[place] = "*" if place in self._goals else "B"
        cells[player] = "+" if player in self._goals else "P"
        return "".join(cells) + self._mark


def read_board(board: str) -> tuple[str, frozenset[int], Position]:
    """Read a board's walls and floor, its goals, and the position of the player and the boxes."""
    if not isinstance(board, str) or set(board) - set("#.PBG*+\n") or len(set(map(len, board.split("\n")))) != 1:
        raise UserError("A Sokoban's column `board` needs rows of one length made of # . P B G * +")
    players, boxes, goals = (
        frozenset(index for index, cell in enumerate(board) if cell in kind) for kind in ("P+", "B*", "G*+")
    )
    if len(players) != 1 or len(boxes) != len(goals) or boxes == goals:
        raise UserError(
            "A Sokoban's column `board` needs one P or +, as many goals as boxes, and a box that is not on one"
        )
    walls = "".join(cell if cell in "#\n" else "." for cell in board)
    return walls, goals, (next(iter(players)), boxes)


def step(walls: str, position: Position, action: str) -> Position:
    """Return the position after an action of `ACTIONS`: the same one if the action is not possible."""
    if action == NOTHING:
        return position
    player, boxes = position
    verb, _, direction = action.partition(" ")
    stride = walls.find("\n") + 1 or len(walls)  # a row and its newline, so that one index names a cell
    offset = {"up": -stride, "down": stride, "left": -1, "right": 1}[direction]
    target, beyond = player + offset, player + 2 * offset
    if not is_floor(walls, target) or (target in boxes) != (verb == "push"):
        return position
    if verb == "move":
        return target, boxes
    if not is_floor(walls, beyond) or beyond in boxes:
        return position
    return target, boxes - {target} | {beyond}


def is_floor(walls: str, place: int) -> bool:
    """Return whether a player or a box can stand at this index."""
    return 0 <= place < len(walls) and walls[place] == "."  # a newline is a wall, so that rows do not join


def solve(walls: str, goals: frozenset[int], position: Position) -> list[str] | None:
    """Return a solution of the fewest actions, or None, for example if a box is stuck."""
    live = live_cells(walls, goals)
    if not position[1] <= live:
        return None

    def successors(position: Position) -> Iterator[tuple[str, Position]]:
        for action in ACTIONS[:-1]:
            next_position = step(walls, position, action)
            if next_position[1] <= live:
                yield action, next_position

    return shortest_plan(position, successors, lambda position: position[1] == goals)


def live_cells(walls: str, goals: frozenset[int]) -> set[int]:
    """Find the cells from which a box, alone on the board, can be pushed to a goal, by pulling a box away from each goal."""
    stride = walls.find("\n") + 1 or len(walls)
    live, queue = set(goals), list(goals)
    for place in queue:
        for offset in (-stride, stride, -1, 1):
            origin = place + offset
            if origin not in live and is_floor(walls, origin) and is_floor(walls, origin + offset):
                live.add(origin)
                queue.append(origin)
    return live


def make_boards(count: int, seed: int, *, level: str = "standard", held_out: bool = False) -> list[str]:
    """Make `count` different boards of a level, border included, by playing backwards from a solved board.

    The walls and goals together decide the split (1 warehouse in 4 is held out): they stay as they are in an episode, so no
    position of a held-out one comes up in training. About half of all boards share one room without inner walls, so a split by
    the walls alone would have them all on one side.
    """
    check_level(level, LEVELS, "Sokoban")
    rng = draws(seed, held_out)
    boards: dict[str, None] = {}
    while len(boards) < count:
        board = _reverse_play(*LEVELS[level], rng)
        walls, goals, position = read_board(board)
        warehouse = board.translate(_WITHOUT_BOXES)
        if (zlib.crc32(warehouse.encode()) % 4 == 0) == held_out and board not in boards:
            solution = solve(walls, goals, position)
            if solution is not None and SHORTEST <= len(solution) <= LONGEST:
                boards[board] = None
    return list(boards)


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation to the prompt.

    With `max_turns` 1 the whole plan is one turn: WMAct's EntirePlan in training, and its single-turn score in evaluation.
    """
    boards = make_boards(count, seed, level=level, held_out=held_out)
    return rows_of(INSTRUCTION, ({"board": board, "level": level} for board in boards), max_turns, MAX_TURNS)


def expert(per_turn: int = 1) -> Chooser:
    """Return a policy that takes a shortest solution, `per_turn` actions a turn, and gives up once there is none."""
    plans: dict[
        tuple[str, frozenset[int], Position], list[str]
    ] = {}  # one search an episode: it may take half a second

    def choose(environment: SokobanEnvironment) -> ToolCall | None:
        walls, goals, position = environment._walls, environment._goals, environment._position
        plan = plans.get((walls, goals, position))
        if plan is None:
            plan = solve(walls, goals, position) or []
            if len(plans) > 1000:
                plans.clear()
            for steps in range(len(plan) + 1):
                plans[walls, goals, position] = plan[steps:]
                if steps < len(plan):
                    position = step(walls, position, plan[steps])
        return call_of(plan[:per_turn])

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that moves and pushes anywhere, up to three actions a turn."""
    return wandering(rng, ACTIONS)


def _reverse_play(side: int, boxes: int, rng: random.Random) -> str:
    """Make one solvable board."""
    try:
        from reasoning_gym.games.contrib.sokoban.src.generator import generate
    except ImportError:
        raise MissingExtraError("Making Sokoban levels", "reasoning-gym", "sokoban") from None
    size = {"min_w": side, "max_w": side, "min_h": side, "max_h": side}
    text, _, _ = generate(rng, min_boxes=boxes, max_boxes=boxes, **size)
    rows = text.replace(" ", "").strip().split("\n")
    return "\n".join(rows).translate(str.maketrans("+-*%@X$", "#.P+BG*"))
