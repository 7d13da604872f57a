import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.worlds.kit.actions import MAX_ACTIONS, MAX_CHARACTERS, ActionEnvironment, parse, shortest_plan
from wm_plugin.worlds.kit.counted import CountedEnvironment, unfit


class Counter(ActionEnvironment):
    """Count to 3: `up`, `down` (not below 0, where it is refused) and `stay`."""

    def reset(self, max_turns: int = 4) -> str:
        self._number = 0
        return self._start(max_turns)

    def act(self, actions: str) -> str:
        return self._act(actions)

    def _is_action(self, action: str) -> bool:
        return action in ("up", "down", "stay put")

    def _apply(self, action: str) -> bool:
        if action == "down" and self._number == 0:
            return False
        self._number += {"up": 1, "down": -1}.get(action, 0)
        self._end_at(self._number == 3)
        return True

    def _state(self) -> int:
        return self._number

    def _observation(self) -> str:
        return str(self._number) + self._mark


KNOWN = {"up", "down", "stay put"}


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("up", ["up"]),
        ("up;down", ["up", "down"]),
        ("  UP ;\n Stay \t put; ", ["up", "stay put"]),
        (";;up;;", ["up"]),
        ("<action>up; down</action>", ["up", "down"]),
        (" <action> up </action>\n", ["up"]),
        ("up, down", [None]),
        ("up; fly; down", ["up", None, "down"]),
        ("", [None]),
        (" ;; ", [None]),
        ("<action></action>", [None]),
        ("</action>", [None]),
        ("<action><action>up</action></action>", [None]),
        ("<action>up</action><action>down</action>", [None]),
        ("<action>up; <action>down</action>; up</action>", ["up", None, "up"]),
        ("I go <action>up</action>", [None]),
        ("ＵＰ", [None]),
        ("up\0", [None]),
        ("\ud800", [None]),
        (None, [None]),
        (["up"], [None]),
        (b"up", [None]),
        (7, [None]),
    ],
)
def test_what_a_text_says(text: object, actions: list[str | None]) -> None:
    assert parse(text, KNOWN.__contains__) == actions


def test_no_letter_outside_ascii_passes_for_one_inside() -> None:
    assert "\u212a".lower() == "k"  # the Kelvin sign
    assert parse("pic\u212aup", {"pickup"}.__contains__) == [None]


def test_more_actions_than_a_turn_takes_are_one_invalid_action() -> None:
    assert parse("up;" * MAX_ACTIONS, KNOWN.__contains__) == ["up"] * MAX_ACTIONS
    assert parse("up;" * (MAX_ACTIONS + 5), KNOWN.__contains__) == ["up"] * MAX_ACTIONS + [None]
    assert parse("up;up;up", KNOWN.__contains__, max_actions=1) == ["up", None]


@pytest.mark.parametrize("text", ["up;" * 1_000_000, "x" * (MAX_CHARACTERS + 1), "<action>" * 100_000, "😀" * 5000])
def test_a_text_too_long_is_one_invalid_action(text: str) -> None:
    assert parse(text, KNOWN.__contains__) == [None]


def test_counts_come_from_the_state() -> None:
    environment = Counter()
    with pytest.raises(ValueError, match="over"):  # before the first reset too
        environment.act("up")
    assert environment.reset() == "0>"
    assert environment.act("up; stay put; down; down; fly") == "Invalid: 2 of 5\n0>"
    assert environment.metrics == {"actions": 5, "effective": 2, "invalid": 2}
    assert environment.act("up; up; stay put") == "2>"
    assert environment.metrics == {"actions": 8, "effective": 4, "invalid": 2}
    assert (environment.turns, environment.get_reward(), environment.over) == (2, 0.0, False)
    assert environment.act("up; up; fly") == "3!"  # what comes after the goal is not counted
    assert environment.metrics == {"actions": 9, "effective": 5, "invalid": 2}
    assert (environment.turns, environment.get_reward(), environment.over) == (3, 1.0, True)
    with pytest.raises(ValueError, match="over"):
        environment.act("up")
    environment.reset(max_turns=1)
    assert environment.metrics == {"actions": 0, "effective": 0, "invalid": 0}
    assert environment.act("up") == "1!"
    assert (environment.success, environment.get_reward()) == (False, 0.0)


def test_a_plan_is_as_short_as_the_distance() -> None:
    rng = random.Random(0)
    for _ in range(50):
        edges = {node: [(str(other), other) for other in rng.sample(range(12), 2)] for node in range(12)}
        goal, ring, visited = rng.randrange(12), {0}, {0}
        distance: int | None = 0
        while goal not in ring:
            ring = {other for node in ring for _, other in edges[node]} - visited
            visited |= ring
            distance = distance + 1 if ring and distance is not None else None
            if not ring:
                break
        plan = shortest_plan(0, edges.__getitem__, goal.__eq__)
        assert (None if plan is None else len(plan)) == distance
        at = 0
        for action in plan or []:
            at = dict(edges[at])[action]
        assert plan is None or at == goal


PIECES = [
    "up",
    "down",
    "stay put",
    ";",
    " ; ",
    "<action>",
    "</action>",
    "\n",
    "<think>",
    "'; DROP TABLE x",
    "{}{0}%s",
    "上",
]


@settings(max_examples=examples(1000), derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec=None), max_size=5), max_size=30).map("".join),
    st.integers(1, 5),
)
def test_any_text_is_a_list_of_known_actions_and_invalid_ones(text: str, most: int) -> None:
    actions = parse(text, KNOWN.__contains__, most)
    assert 1 <= len(actions) <= most + 1
    assert set(actions) <= KNOWN | {None}


class Losable(CountedEnvironment):
    _lost = 0


def test_a_lost_episode_ends_is_counted_and_does_not_spoil_the_next() -> None:
    environment, other = Losable(), Losable()
    environment.max_turns = 3
    environment._lose()
    assert (environment.over, environment.get_reward()) == (True, 0.0)
    assert environment.metrics == {"actions": 0, "effective": 0, "invalid": 0, "lost": 1}
    assert other.metrics["lost"] == 0
    environment._begin()
    assert not environment.over
    assert environment.metrics["lost"] == 0
    assert "lost" not in CountedEnvironment().metrics


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "must be text"), ("abcd", "has 4 characters; 3 are the most"), ("\ud800", "is not Unicode"), ("é\0", "")],
)
def test_what_a_world_does_not_take(text: Any, why: str) -> None:
    assert unfit(text, 3) == why
