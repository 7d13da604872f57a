"""What a dataset writes into rows and a policy into calls, in every world of the registry: one line, in linear time."""

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.rows import BAD
from support.timing import repeated, too_slow
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.worlds import alfworld
from wm_plugin.worlds.kit.protocol import tool_names
from wm_plugin.worlds.kit.rows import turn_limit
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.worlds import load

SLOW = {"alfworld", "forth", "scienceworld", "tau2", "textworld"}  # they start programs
WORLDS = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SPECS]
SHAPES = [
    " ", "\n", ";", " ;", "move up;", "<action>", "</action>", "[", "(", "(1+", "1,", "- ", "a", "a b", "é", "\u0301", '"', "'",
    "\\", "0", "9", "#", "*", "{", "%", "_", "<", "`", "-", "/*", "--", "U;", "U ", "\ud800", "é; ",
]  # fmt: skip


@cache
def world(name: str) -> tuple[Any, dict[str, Any]]:
    """An environment and a row of it."""
    loaded = load(name)
    if missing := loaded.missing():
        pytest.skip(f"{name} needs {', '.join(missing)}")
    try:
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
                assert not environment.metrics.get("lost"), (column, value)
            except UserError as error:
                text = str(error)
                assert "\n" not in text, (column, value)
                assert 0 < len(text.encode()) < 800, (column, value)


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_alfworlds_rows_are_checked_without_its_engine(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    for call in (
        lambda: alfworld.build(value, 1),
        lambda: alfworld.build("standard", value),
        lambda: alfworld._own_game(value),
    ):
        try:
            call()
        except ModuleNotFoundError as error:  # a row that is played where the package is
            missing = error.name
            assert missing == "alfworld"
        except UserError as error:
            text = str(error)
            assert "\n" not in text
            assert len(text) < 300


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b"[" * 9999, b"\xff", b'{"pddl_domain": 1, "grammar": "", "pddl_problem": ""}']
)
def test_a_damaged_game_of_alfworld_is_one_line(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "game.tw-pddl").write_bytes(text)
    for call in (lambda: alfworld._own_game("train/game.tw-pddl"), lambda: alfworld.dataset_rows(1, level="data")):
        with pytest.raises(UserError, match="game.tw-pddl is no game of ALFWorld: "):
            call()


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (None, 7),
        (0, 7),
        (float("nan"), 7),
        (1, 1),
        (3.0, 3),
        (10**30, 10**9),
        (10**400, 10**9),
        (0.0, 7),
        (np.int64(3), 3),
    ],
)
def test_a_number_of_turns(value: Any, limit: int) -> None:
    assert turn_limit(value, 7) == limit


@pytest.mark.parametrize(
    "value", [True, False, -1, 1.5, float("inf"), "5", "", [], {}, b"1", "x" * 9999, np.arange(2), np.zeros((9, 9))]
)
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
