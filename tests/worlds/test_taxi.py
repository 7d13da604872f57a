import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds import taxi
from wm_plugin.worlds.check import texts

REAL = pytest.importorskip("gymnasium").make("Taxi-v4").unwrapped

PLACES = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}
WALLS = {(0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2)}  # to the right of these cells
MOVES = {"move down": (1, 0), "move up": (-1, 0), "move right": (0, 1), "move left": (0, -1)}


class Naive:
    """The rules from the map alone; `where` is a place's letter or "taxi"."""

    def __init__(self, cell: tuple[int, int], where: str, wish: str) -> None:
        self.cell, self.where, self.wish, self.done = cell, where, wish, False

    def act(self, action: str) -> tuple[bool, bool]:
        """(whether the state changed, whether the action was refused)"""
        if action in MOVES:
            (r, c), (dr, dc) = self.cell, MOVES[action]
            inside = 0 <= r + dr < 5 and 0 <= c + dc < 5
            wall = dc != 0 and (r, min(c, c + dc)) in WALLS
            if not inside or wall:
                return False, False
            self.cell = (r + dr, c + dc)
            return True, False
        if action == "pickup":
            taken = self.where != "taxi" and PLACES[self.where] == self.cell
            self.where = "taxi" if taken else self.where
        else:
            taken = self.where == "taxi" and PLACES[self.wish] == self.cell
            self.where = self.wish if taken else self.where
            self.done = taken
        return taken, not taken

    def key(self) -> tuple[tuple[int, int], str, str, bool]:
        return self.cell, self.where, self.wish, self.done

    def picture(self) -> list[list[str]]:
        cells = [["" for _ in range(5)] for _ in range(5)]
        for letter, (r, c) in PLACES.items():
            cells[r][c] = letter
        marks: dict[tuple[int, int], list[str]] = {self.cell: ["T(P)" if self.where == "taxi" else "T"]}
        if self.where != "taxi":
            marks.setdefault(PLACES[self.where], []).append("P")
        marks.setdefault(PLACES[self.wish], []).append("D")
        for (r, c), things in marks.items():
            cells[r][c] = "/".join(things)
        return cells


def naive_shortest(start: Naive) -> int:
    """Actions to the delivery, one ring of states at a time."""
    ring, visited, length = [start], {start.key()}, 0
    while not any(state.done for state in ring):
        following = []
        for state in ring:
            for action in taxi.ACTIONS:
                after = Naive(state.cell, state.where, state.wish)
                after.act(action)
                if after.key() not in visited:
                    visited.add(after.key())
                    following.append(after)
        ring, length = following, length + 1
    return length


def naive_of(state: int) -> Naive:
    row, column, passenger, destination = REAL.decode(state)
    return Naive((row, column), "RGYB"[passenger], "RGYB"[destination])


def cells_of(observation: str) -> list[list[str]]:
    lines = observation[:-1].split("\n")
    assert len({len(line) for line in lines}) == 1
    for r, line in enumerate(lines[1:-1]):
        separators = line[:: taxi.WIDTH + 1]
        assert separators == "|" + "".join("|" if (r, c) in WALLS else ":" for c in range(4)) + "|"
    return [[line[1 + c * (taxi.WIDTH + 1) :][: taxi.WIDTH].strip() for c in range(5)] for line in lines[1:-1]]


# Words that lead on are likelier, so that episodes get somewhere.
WORDS = st.sampled_from([*taxi.ACTIONS, "best", "best", "best", "best", "honk"])


@settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)
@given(st.sampled_from(taxi.start_states()), st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=6, max_size=6))
def test_actions_agree_with_a_naive_reference(start: int, turns: list[list[str]]) -> None:
    naive, environment = naive_of(start), taxi.TaxiEnvironment()
    observation = environment.reset(start, max_turns=6)
    counts = {"actions": 0, "effective": 0, "invalid": 0}
    for turn, words in enumerate(turns, start=1):
        assert cells_of(observation) == naive.picture()
        solution, actions = iter(taxi.solve(environment._number) or []), []
        for word in words:
            actions.append(next(solution, "honk") if word == "best" else word)
        wrong = taken = 0
        for action in actions:
            changed, refused = naive.act(action) if action in taxi.ACTIONS else (False, True)
            counts["effective"] += changed
            wrong += refused
            taken += 1
            if naive.done:
                break
        counts["actions"] += taken
        counts["invalid"] += wrong
        observation = environment.act(";".join(actions))
        if wrong:
            first, _, observation = observation.partition("\n")
            assert first == f"Invalid: {wrong} of {taken}"
        assert cells_of(observation) == naive.picture()
        assert environment.metrics == counts
        assert (environment.success, environment.turns) == (naive.done, turn)
        assert (observation[-1] == "!") == environment.over == (naive.done or turn == 6)
        if environment.over:
            break


def test_moves_and_pickups_are_those_of_the_gymnasium_environment() -> None:
    REAL.reset(seed=0)
    rng = random.Random(0)
    for start in taxi.start_states()[::7]:
        environment = taxi.TaxiEnvironment()
        environment.reset(start)
        REAL.s = start
        for _ in range(20):
            action = rng.choice(taxi.ACTIONS[:5])
            environment.act(action)
            state = REAL.step(taxi.ACTIONS.index(action))[0]
            assert environment._number == state


def test_the_expert_wins_every_level_by_the_shortest_way() -> None:
    rows = [*taxi.dataset_rows(240), *taxi.dataset_rows(60, held_out=True)]
    for number, row in enumerate(rows):
        per_turn = number % 4 + 1
        plan = taxi.solve(row["state"]) or []
        if number % 5 == 0:
            assert len(plan) == naive_shortest(naive_of(row["state"]))
            played = taxi.TaxiEnvironment()
            texts(played, row, taxi.expert(per_turn))
            assert (played.success, played.turns) == (True, -(-len(plan) // per_turn))
            assert played.metrics == {"actions": len(plan), "effective": len(plan), "invalid": 0}
        environment = taxi.TaxiEnvironment()
        environment.reset(**row)
        assert environment.act("; ".join(plan)).endswith("!")
        assert environment.success


def test_the_300_start_states_are_split_once() -> None:
    train, held_out = taxi.dataset_rows(240, seed=3), taxi.dataset_rows(60, seed=4, held_out=True)
    states = [row["state"] for row in train + held_out]
    decoded = [tuple(map(int, taxi._taxi().decode(row["state"]))) for row in held_out]
    for part, times in ((0, 12), (1, 12), (slice(2, None), 5)):  # row, column, passenger with destination
        assert set(Counter(state[part] for state in decoded).values()) == {times}
    shortest = [sum(len(taxi.solve(row["state"]) or []) for row in part) / len(part) for part in (train, held_out)]
    assert abs(shortest[0] - shortest[1]) < 0.2  # it was 12.94 and 13.58
    assert sorted(states) == sorted(taxi.start_states())
    assert len(set(states)) == 300
    again = taxi.dataset_rows(500, seed=3)
    assert again[:240] == train
    assert {row["state"] for row in again} == {row["state"] for row in train}
    assert sum(row["state"] for row in held_out[:10]) != sum(row["state"] for row in train[:10])
    evaluations = [row["state"] for row in taxi.dataset_rows(256, seed=4, held_out=True, repeat=True)]
    assert evaluations[:60] == [row["state"] for row in held_out]
    assert sorted(Counter(evaluations).values()) == [4] * 44 + [5] * 16


def test_a_passenger_is_set_down_nowhere_else() -> None:
    """Gymnasium would, at any of the four places."""
    environment = taxi.TaxiEnvironment()
    start = next(state for state in taxi.start_states() if naive_of(state).key() == ((0, 0), "R", "B", False))
    environment.reset(start)
    assert environment.act("dropoff") == "Invalid: 1 of 1\n" + environment._observation()
    before = environment.act("pickup")
    assert environment.act("dropoff; pickup") == "Invalid: 2 of 2\n" + before
    assert environment.metrics == {"actions": 4, "effective": 1, "invalid": 3}
