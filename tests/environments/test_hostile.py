"""What a dataset writes into rows and a policy into calls, in every world that needs no engine: one line, in linear time."""

import inspect
from functools import cache
from typing import Any

import pytest

from support.timing import repeated, too_slow
from wm_plugin.environments.kit.protocol import tool_names
from wm_plugin.environments.kit.rows import turn_limit
from wm_plugin.environments.worlds import load
from wm_plugin.errors import MissingExtraError, UserError

WORLDS = ("dialogue", "docs", "grid", "maze", "shop", "sokoban", "sql", "taxi", "wordle")
BAD: list[Any] = [
    None, True, -1, 0, 10**30, 10**400, 1.5, float("nan"), float("inf"), "", "x", "9" * 5000, "1e9", "\ud800", "\0", "a\nb",
    [], {}, ["a"], [[]], {"a": 1}, b"x",
]  # fmt: skip
SHAPES = [
    " ", "\n", ";", " ;", "move up;", "<action>", "</action>", "[", "(", "(1+", "1,", "- ", "a", "a b", "é", "\u0301", '"', "'",
    "\\", "0", "9", "#", "*", "{", "%", "_", "<", "`", "-", "/*", "--", "U;", "U ", "\ud800", "é; ",
]  # fmt: skip


@cache
def world(name: str) -> tuple[Any, dict[str, Any]]:
    """An environment and a row of it."""
    try:
        loaded = load(name)
        row = loaded.rows(1, 0, False)[0]
        return loaded.make(), {column: value for column, value in row.items() if column != "prompt"}
    except MissingExtraError as error:
        pytest.skip(str(error))


def calls(environment: Any) -> list[tuple[Any, list[str]]]:
    tools = [getattr(environment, name) for name in tool_names(type(environment))]
    return [(tool, list(inspect.signature(tool).parameters)) for tool in tools]


@pytest.mark.parametrize("name", WORLDS)
def test_a_bad_row_is_one_line_or_can_be_played(name: str) -> None:
    environment, row = world(name)
    names = [*row, *inspect.signature(type(environment).reset).parameters]
    for column in [name for name in dict.fromkeys(names) if name not in ("self", "_")]:
        for value in BAD:
            try:
                environment.reset(**row | {column: value})
                tool, arguments = calls(environment)[0]
                tool(**dict.fromkeys(arguments, "a"))
            except UserError as error:
                text = str(error)
                assert "\n" not in text, (column, value)
                assert 0 < len(text.encode()) < 400, (column, value)


@pytest.mark.parametrize(
    ("value", "limit"), [(None, 7), (0, 7), (float("nan"), 7), (1, 1), (3.0, 3), (10**30, 10**30), (0.0, 7)]
)
def test_a_number_of_turns(value: Any, limit: int) -> None:
    assert turn_limit(value, 7) == limit


@pytest.mark.parametrize("value", [True, False, -1, 1.5, float("inf"), "5", "", [], {}, b"1", "x" * 9999])
def test_what_is_no_number_of_turns(value: Any) -> None:
    with pytest.raises(UserError, match=r"column `max_turns` is .*; write a whole number of turns >= 1") as error:
        turn_limit(value, 7)
    assert len(str(error.value)) < 150


def test_an_integer_that_python_does_not_write() -> None:
    with pytest.raises(UserError, match="column `max_turns` is int; write"):
        turn_limit(-(10**5000), 7)


@pytest.mark.parametrize("name", WORLDS)
def test_calls_take_linear_time(name: str) -> None:
    """Twice the text takes no more than about twice the time, whatever it is made of; many worlds refuse long texts at once."""
    environment, row = world(name)

    def ready() -> None:
        if environment.over:
            environment.reset(**row)

    environment.reset(**row)
    for method, parameters in calls(environment):
        for parameter in parameters:

            def call(text: str) -> None:
                others = dict.fromkeys(parameters, "a")  # noqa: B023
                assert isinstance(getattr(environment, method.__name__)(**others | {parameter: text}), str)  # noqa: B023

            for shape in SHAPES:
                slow = too_slow(call, repeated(shape), largest=40_000, ready=ready)
                assert slow is None, (method.__name__, parameter, shape, slow)
