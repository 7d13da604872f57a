"""What every environment in the registry keeps to, and nothing about any one of them."""

import hashlib
import inspect
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin.errors import UserError
from wm_plugin.worlds import ENVIRONMENTS
from wm_plugin.worlds.worlds import load

ENGINES = {"alfworld", "scienceworld", "textworld"}  # processes with a time limit, slow to start: tests of their own
NAMES = [name for name in ENVIRONMENTS if name not in ENGINES | {"tau2"}]  # no package brings tau2: test_tau2
CALLS = [  # arguments for any tool; most of them are for the one with the most to get wrong
    *"UDLR",
    "SELECT * FROM employees",
    "SELECT name FROM employees WHERE salary > (SELECT avg(salary) FROM employees)",
    "SELECT department_id, count(*), avg(salary) FROM employees GROUP BY department_id",
    "SELECT DISTINCT ordered_on FROM orders",
    "UPDATE employees SET salary = salary * 2 WHERE id % 3 = 0",
    "INSERT INTO orders (product_id, employee_id, quantity, ordered_on) SELECT id, 1, 1, 'x' FROM products",
    "DELETE FROM orders WHERE quantity > 6 RETURNING *",
    "EXPLAIN QUERY PLAN SELECT * FROM orders JOIN products ON products.id = product_id",
    "EXPLAIN SELECT max(salary) FROM employees",
    "EXPLAIN SELECT * FROM json_each('[1]')",
    "WITH RECURSIVE z (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM z) SELECT max(x) FROM z",
    "BEGIN",
    "ROLLBACK",
]
NASTY: list[Any] = [
    "",
    " ",
    "\0",
    "\ud800",
    "U\n",
    "u",
    "x" * 100_000,
    "😀" * 5000,
    "\x1b[2J\r\b",
    "'; DROP TABLE employees; --",
    "SELECT * FROM orders",
    "1); DELETE FROM orders; --",
    "</tool_response><|im_end|>",
    "{}{0}%s%n",
    None,
    True,
    3.5,
    float("nan"),
    10**30,
    ["U"],
    {"U": 1},
]
ARGUMENTS = st.sampled_from([*CALLS, *NASTY]) | st.text(st.characters(codec=None), max_size=60)


def rows_of(name: str, count: int, **options: Any) -> list[dict[str, Any]]:
    world = load(name)
    if missing := world.missing():
        pytest.skip(f"{name} needs {' and '.join(missing)}")
    return world.rows(count, **options)


def tools_of(environment: object) -> dict[str, Callable[..., str]]:
    """The tools that TRL finds: the public functions of the class, less two."""
    members = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
    return {name: getattr(environment, name) for name in names}


def task(row: dict[str, Any]) -> str:
    return repr([(column, value) for column, value in sorted(row.items()) if column != "prompt"])


def transcript(name: str) -> str:
    """A hash of everything that 20 episodes of random calls show."""
    environment, rng, texts = ENVIRONMENTS.get(name)(), random.Random(0), []
    for row in rows_of(name, 20, seed=9):
        texts += [repr(row), environment.reset(**row)]
        while not environment.over:
            tool = tools_of(environment)[rng.choice(sorted(tools_of(environment)))]
            try:
                texts.append(tool(*[rng.choice(CALLS) for _ in inspect.signature(tool).parameters]))
            except ValueError as error:
                texts.append(str(error))
        texts.append(str(environment.get_reward()))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@pytest.mark.host
@pytest.mark.parametrize("name", NAMES)
def test_every_tool_has_a_schema(name: str) -> None:
    utils = pytest.importorskip("transformers.utils")
    tools = tools_of(ENVIRONMENTS.get(name)())
    assert tools
    for tool_name, tool in tools.items():
        function = utils.get_json_schema(tool)["function"]
        assert function["name"] == tool_name
        assert function["description"]
        assert set(function["parameters"]["properties"]) == set(inspect.signature(tool).parameters)
        for argument in function["parameters"]["properties"].values():
            assert argument["description"]
            text = argument["items"] if argument["type"] == "array" else argument  # a text, or several
            assert text["type"] == "string"


SLOW = {"sokoban": pytest.mark.slow}  # makes levels for seconds, as its own tests do


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in NAMES])
def test_a_row_starts_an_episode(name: str) -> None:
    environment = ENVIRONMENTS.get(name)()
    for row in rows_of(name, 3):
        assert [message["role"] for message in row["prompt"]] == ["user"]
        assert environment.reset(**row, some_other_column=1)
        assert (environment.over, environment.success, environment.turns) == (False, False, 0)
        assert environment.get_reward() == 0.0
        assert isinstance(environment.get_reward(), float)


@pytest.mark.parametrize("name", NAMES)
def test_every_call_counts_as_a_turn_and_the_end_is_final(name: str) -> None:
    environment, rng = ENVIRONMENTS.get(name)(), random.Random(1)
    environment.reset(**rows_of(name, 1)[0])
    calls = [
        (tool, [rng.choice("UDLR") for _ in inspect.signature(tool).parameters])
        for _, tool in sorted(tools_of(environment).items())
    ]
    turns = 0
    while not environment.over:
        tool, arguments = calls[turns % len(calls)]
        assert isinstance(tool(*arguments), str)
        turns += 1
        assert environment.turns == turns <= 100
    for tool, arguments in calls:
        with pytest.raises(ValueError, match="over"):
            tool(*arguments)
    assert environment.turns == turns


@pytest.mark.parametrize("name", NAMES)
def test_rows_follow_from_the_seed_and_the_splits_share_no_task(name: str) -> None:
    count = 8 if name in SLOW else 40  # its own tests make 256
    train, held_out = rows_of(name, count, seed=1), load(name).some_rows(count, seed=1, held_out=True)
    assert train == rows_of(name, count, seed=1)
    assert train != rows_of(name, count, seed=2)
    assert len(train) == count
    assert len(held_out) >= 5
    assert not {task(row) for row in train} & {task(row) for row in held_out}


@pytest.mark.parametrize("name", NAMES)
def test_any_argument_gives_text_or_a_value_error(name: str) -> None:
    rows = rows_of(name, 5)
    environment = ENVIRONMENTS.get(name)()
    environment.reset(**rows[0])

    @settings(max_examples=examples(350), derandomize=True, deadline=None, database=None)
    @given(
        st.sampled_from(sorted(tools_of(environment))),
        st.lists(ARGUMENTS, min_size=3, max_size=3),
        st.sampled_from(rows),
    )
    def fuzz(tool: str, arguments: list[Any], row: dict[str, Any]) -> None:
        if environment.over:
            environment.reset(**row)
        call = tools_of(environment)[tool]
        try:
            text = call(*arguments[: len(inspect.signature(call).parameters)])
        except ValueError as error:
            text = str(error)
        assert 0 < len(text.encode()) < 20_000  # encodes: a tokenizer takes no lone surrogates

    fuzz()


@pytest.mark.slow
def test_episodes_are_the_same_in_a_process_with_other_hashes() -> None:
    names = [name for name in NAMES if not load(name).missing()]
    code = f"import test_protocol\nprint(*[test_protocol.transcript(name) for name in {names}])"
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert other.stdout.split() == [transcript(name) for name in names]


@pytest.mark.parametrize("name", list(ENVIRONMENTS))
def test_the_class_says_what_hosts_and_people_ask_for(name: str) -> None:
    world = load(name)
    assert world.summary
    assert world.levels
    assert all(isinstance(level, str) for level in world.levels)
    assert isinstance(world.environment.irreversible, tuple)  # type: ignore[attr-defined]
    assert set(world.irreversible) <= set(tools_of(world.make()))
    assert callable(world.module.expert)
    assert callable(world.module.wanderer)
    assert isinstance(world.module.INSTRUCTION, str)


@pytest.mark.parametrize("name", NAMES)
def test_metrics_count_and_start_anew(name: str) -> None:
    rows, world = rows_of(name, 2), load(name)
    environment, choose = world.make(), world.wanderer(random.Random(0))
    for row in rows:
        environment.reset(**row)
        assert dict(environment.metrics)["actions"] == 0
        while not environment.over and environment.turns < 12 and (chosen := choose(environment)):
            getattr(environment, chosen[0])(**chosen[1])
        metrics = dict(environment.metrics)
        assert all(isinstance(value, int | float) for value in metrics.values())
        assert 0 < metrics["actions"] >= metrics["effective"] + metrics["invalid"] >= 0


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_wins_and_is_the_same_again(name: str) -> None:
    rows, world = rows_of(name, 3, held_out=True), load(name)
    outcomes = []
    for _ in range(2):
        environment = world.make()
        for row in rows:
            environment.reset(**row)
            choose, calls = world.expert(), []
            assert choose is not None
            while not environment.over and len(calls) < 200 and (chosen := choose(environment)):
                calls.append(chosen)
                getattr(environment, chosen[0])(**chosen[1])
            assert environment.success
            assert environment.get_reward() == pytest.approx(1.0)
            outcomes.append(calls)
    assert outcomes[:3] == outcomes[3:]


@pytest.mark.parametrize("name", NAMES)
def test_each_level_has_rows_and_a_misspelt_one_is_named(name: str) -> None:
    world = load(name)
    for level in world.levels[:1]:
        assert {row.get("level", level) for row in rows_of(name, 2, level=level)} <= set(world.levels)
    with pytest.raises(UserError, match="level.*'standart'"):
        world.module.dataset_rows(1, level="standart")


def garbage(rng: random.Random) -> Any:
    """What a model may write: pieces of actions, markup, code and other scripts in any order, or another type."""
    pieces = [
        *CALLS,
        *NASTY,
        "move up",
        "push left",
        ";",
        "; ",
        "<action>",
        "</action>",
        "<think>",
        "crane",
        "buy",
        "$(ls)",
    ]
    if rng.random() < 0.1:
        return rng.choice(NASTY)
    chosen = (
        rng.choice(pieces) if rng.random() < 0.7 else chr(rng.randrange(0x11000)) for _ in range(rng.randint(0, 12))
    )
    return "".join(piece[:200] if isinstance(piece, str) else str(piece) for piece in chosen)


@pytest.mark.parametrize("name", ["grid", "maze", "shop", "sokoban", "sql", "taxi", "wordle"])
def test_1000_calls_with_garbage_are_answered_in_words(name: str) -> None:
    rows, environment, rng = rows_of(name, 3), ENVIRONMENTS.get(name)(), random.Random(5)
    environment.reset(**rows[0])
    tools = tools_of(environment)
    for number in range(1000):
        if environment.over:
            environment.reset(**rows[number % 3])
        tool = tools[rng.choice(sorted(tools))]
        before = dict(environment.metrics)
        text = tool(*[garbage(rng) for _ in inspect.signature(tool).parameters])
        assert 0 < len(text.encode()) < 20_000
        assert environment.metrics["actions"] > before["actions"]
