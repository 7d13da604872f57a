"""Gymnasium's Taxi-v4: fetch a passenger and bring them to their destination, on a 5x5 map with walls.

An observation is the map, with compound symbols where things share a cell, and one status mark: `>` your turn, `!` the episode
is over. The states and moves are gymnasium's own; pickup and dropoff are strict, as in WMAct: one that is not possible changes
nothing and is an invalid action (gymnasium would set the passenger down at any of the four places).
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, shown
from wm_plugin.worlds.kit.actions import ActionEnvironment, call_of, shortest_plan, wandering
from wm_plugin.worlds.kit.protocol import Chooser
from wm_plugin.worlds.kit.rows import Rows, check_count, check_level, draws, repeated, row_number, rows_of, turn_limit
from wm_plugin.worlds.specs import SPECS, described_as

MAX_TURNS = 30
LEVELS = ("standard",)
ACTIONS = ("move down", "move up", "move right", "move left", "pickup", "dropoff")  # numbered as in gymnasium
IN_TAXI = 4  # the passenger's position, besides the numbers of the four places
WIDTH = 7  # characters of a cell on the map

INSTRUCTION = SPECS["taxi"].instruction


@described_as("taxi")
class TaxiEnvironment(ActionEnvironment):
    """One episode: at most `max_turns` turns of several actions each; reward 1 for the passenger at the destination."""

    _known = ACTIONS
    _number: int  # gymnasium's, of the state

    def reset(self, state: int, max_turns: int | None = None, **_: Any) -> str:
        """Start at gymnasium's `state`, one of its 300 start states, and return the first observation."""
        number = row_number(state, "state", "taxi")
        if number not in start_states():
            raise UserError(f"A taxi's column `state` needs one of gymnasium's 300 start states, not {shown(state)}")
        self._number = number
        return self._start(turn_limit(max_turns, MAX_TURNS))

    def act(self, actions: str) -> str:
        return self._act(actions)

    def _apply(self, action: str) -> bool:
        next_state = step(self._number, action)
        if next_state is None:
            return False
        self._number = next_state
        self._end_at(is_delivered(next_state))
        return True

    def _state(self) -> int:
        return self._number

    def _observation(self) -> str:
        return draw(self._number) + self._mark


@cache
def _taxi() -> Any:
    """Import gymnasium's environment, of which only the tables are used."""
    try:
        from gymnasium.envs.toy_text.taxi import TaxiEnv
    except ImportError:
        raise MissingExtraError("The taxi", "gymnasium", "taxi") from None
    return TaxiEnv()


@cache
def start_states() -> tuple[int, ...]:
    """Return the states in which the passenger waits at one place and wants to go to another."""
    return tuple(int(state) for state in _taxi().initial_state_distrib.nonzero()[0])


def is_held_out(state: int) -> bool:
    """Return whether a start state is held out: 60 of 300, spread evenly over rows, columns, passengers and destinations."""
    row, column, passenger, destination = _taxi().decode(state)
    return bool((row + 2 * (4 * passenger + destination)) % 5 == column)


@cache  # 500 states, 6 actions
def step(state: int, action: str) -> int | None:
    """Return the state after an action of `ACTIONS`; None for a pickup or a dropoff that is not possible."""
    next_state = int(_taxi().P[state][ACTIONS.index(action)][0][1])
    refused = next_state == state if action == "pickup" else action == "dropoff" and not is_delivered(next_state)
    return None if refused else next_state


def is_delivered(state: int) -> bool:
    """Return whether the passenger is at the destination and out of the taxi."""
    _, _, passenger, destination = _taxi().decode(state)
    return bool(passenger == destination)


@cache
def draw(state: int) -> str:
    """Draw the map of a state."""
    taxi = _taxi()
    row, column, passenger, destination = taxi.decode(state)
    border = "+" + "-" * (5 * WIDTH + 4) + "+"
    lines = [border]
    for r in range(5):
        cells = [symbol.decode() for symbol in taxi.desc[r + 1]]  # walls and cells in turn: |R: | : :G|
        for c in range(5):
            things = ["T(P)" if passenger == IN_TAXI else "T"] * ((r, c) == (row, column))
            things += ["P"] * (passenger != IN_TAXI and (r, c) == taxi.locs[passenger])
            things += ["D"] * ((r, c) == taxi.locs[destination])
            cells[2 * c + 1] = ("/".join(things) or cells[2 * c + 1]).center(WIDTH)
        lines.append("".join(cells))
    return "\n".join([*lines, border])


def dataset_rows(
    count: int,
    seed: int = 0,
    held_out: bool = False,
    level: str = "standard",
    max_turns: int = MAX_TURNS,
    repeat: bool = False,
) -> Rows:
    """Make rows for a trainer; `reset` appends the first observation to the prompt.

    With `max_turns` 1 the whole plan is one turn: WMAct's EntirePlan in training, and its single-turn score in evaluation.

    The taxi has 300 start states, too few for the paper's 256 held-out ones beside those to train on. 240 are for training,
    repeated as often as `count` needs, and 60 are held out, each once. With `repeat` these are repeated too: 256 rows are then
    256 evaluations over 60 states (`taxi_256_over_60` in the recipes).
    """
    check_level(level, LEVELS, "taxi")
    states = [state for state in start_states() if is_held_out(state) == held_out]
    if held_out and not repeat:
        check_count(count, len(states), "The taxi has {} held-out start states (repeat=true takes each several times)")
    tasks = ({"state": state, "level": level} for state in repeated(draws(seed, held_out), states, count))
    return rows_of(INSTRUCTION, tasks, max_turns, MAX_TURNS)


def solve(state: int) -> list[str] | None:
    """Return a shortest way to deliver the passenger."""

    def successors(state: int) -> Iterator[tuple[str, int]]:
        for action in ACTIONS:
            if (next_state := step(state, action)) is not None:
                yield action, next_state

    return shortest_plan(state, successors, is_delivered)


def expert(per_turn: int = 1) -> Chooser:
    """Return a policy that takes a shortest way, `per_turn` actions a turn."""
    return lambda environment: call_of((solve(environment._number) or [])[:per_turn])


def wanderer(rng: random.Random) -> Chooser:
    """Return a policy that drives anywhere, up to three actions a turn."""
    return wandering(rng, ACTIONS)
