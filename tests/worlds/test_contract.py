"""What every registered world keeps to: rows, turns, experts, and whatever a dataset or a policy may write."""

import hashlib
import inspect
import itertools
import json
import os
import random
import resource
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.cases import CASES
from support.environments import world
from support.rows import BAD
from support.timing import repeated, too_slow
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting.world import tool_methods
from wm_plugin.worlds.check import HOSTILE, check, texts
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.worlds import World, load

ENGINES = {"alfworld", "forth", "scienceworld", "swe", "tau2", "terminal", "textworld"}  # they start programs
SLOW = ENGINES | {"sokoban"}  # whose levels take seconds to make
WITHOUT_ENGINE = {"alfworld", "scienceworld", "swe", "textworld"}  # rows of these need no package


def worlds(slow: set[str] = ENGINES, nightly: set[str] | None = None) -> Any:
    def marks(name: str) -> list[Any]:
        if name in (nightly or ()):
            return [pytest.mark.nightly]
        return [pytest.mark.slow] if name in slow else []

    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SPECS])


def marked(name: str, *values: Any) -> Any:
    """A case of a world, which is slow where the world is."""
    slow = name in SLOW and values[0] != "standard"
    return pytest.param(name, *values, marks=[pytest.mark.slow] if slow or name in ENGINES else [])


@cache
def prepared(name: str) -> tuple[World, Any, list[dict[str, Any]]]:
    """The world, an instance that tests share, and rows."""
    found = world(name)
    try:
        return found, found.make(), found.some_rows(8, seed=9)
    except MissingExtraError as error:
        pytest.skip(str(error))


def tools_of(environment: Any) -> dict[str, list[str]]:
    """The parameters of each tool."""
    return {name: list(inspect.signature(tool).parameters) for name, tool in tool_methods(environment).items()}


def call(environment: Any, tool: str, value: Any = "U") -> Any:
    return getattr(environment, tool)(**dict.fromkeys(tools_of(environment)[tool], value))


@pytest.mark.host
@pytest.mark.parametrize("name", SPECS)
def test_every_tool_has_a_schema_of_texts(name: str) -> None:
    environment = load(name).environment
    for tool in SPECS[name].tools:
        function = tool_schema(getattr(environment, tool))["function"]
        assert function["name"] == tool
        assert function["description"]
        parameters = function["parameters"]
        assert set(parameters["properties"]) == set(inspect.signature(getattr(environment, tool)).parameters) - {"self"}
        for argument in parameters["properties"].values():
            assert argument["description"]
            text = argument["items"] if argument["type"] == "array" else argument  # a text, or several
            assert text["type"] == "string"


@pytest.mark.host  # schemas
@worlds(SLOW)
def test_every_level_keeps_the_rules_and_its_expert_wins(name: str) -> None:
    """What `wm env check` finds, on every level; and an expert makes no mistakes, within prompts of a bearable length."""
    found, environment, _ = prepared(name)
    for level in found.levels[:1] if name in ENGINES else found.levels:
        report = check(found, seeds=3, level=level, quick=True)
        assert {one.name: one.detail for one in report.findings if one.state == "fail"} == {}
        lacking = {use.name for use in report.uses if use.add}
        assert lacking == (set() if found.irreversible else {"verifier"})
        train, held_out = (
            found.some_rows(24, seed=1, level=level),
            found.some_rows(24, seed=1, held_out=True, level=level),
        )
        assert train != found.rows(len(train), seed=2, level=level)
        assert len(held_out) >= 5
        assert {row.get("level", level) for row in train} <= set(found.levels)
        for row in held_out[:3]:
            first = environment.reset(**row)
            assert len(row["prompt"][0]["content"] + first) < 3000
            texts(environment, row, found.expert() or (lambda _: None))
            assert environment.success, row
            assert environment.get_reward() == pytest.approx(1.0)
            assert environment.metrics["invalid"] == 0
    with pytest.raises(UserError, match="level.*'standart'"):
        found.module.dataset_rows(1, level="standart")


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.splits])
def test_a_world_with_splits_has_rows_of_each_and_shares_none(name: str) -> None:
    found = load(name) if name in WITHOUT_ENGINE else world(name)
    assert found.splits == tuple(found.module.SPLITS)
    rows = {split: found.some_rows(64, seed=3, split=split) for split in found.splits}
    keys = {split: {json.dumps(row, sort_keys=True) for row in some} for split, some in rows.items()}
    assert all(len(some) >= 16 for some in keys.values())
    for one, other in itertools.combinations(keys.values(), 2):
        assert not one & other
    assert found.rows(16, seed=3) == found.rows(16, seed=3, split="train")
    assert found.rows(16, seed=3, held_out=True) == found.rows(16, seed=3, split="unseen")
    with pytest.raises(UserError, match="leave held_out out"):
        found.rows(1, held_out=True, split="seen")
    with pytest.raises(UserError, match="has no split 'valid'; there is 'seen', 'train', 'unseen'"):
        found.rows(1, split="valid")
    with pytest.raises(UserError, match="has no split 7"):
        found.module.dataset_rows(1, split=7)


@worlds(ENGINES - WITHOUT_ENGINE)
def test_the_prompt_says_how_many_turns_the_episode_has(name: str) -> None:
    if name == "grid":
        pytest.skip("the board is the prompt")
    found = load(name) if name in WITHOUT_ENGINE else world(name)
    for turns, phrase in ((3, "at most 3 "), (1, "one ")):
        (usual,), (short,) = found.rows(1, seed=3), found.rows(1, seed=3, max_turns=turns)
        text = short["prompt"][0]["content"]
        assert phrase in text
        assert text != usual["prompt"][0]["content"]
        assert "{" not in text.partition("\n")[0]
        assert short == {**usual, "prompt": short["prompt"], "max_turns": turns}  # the same task
        if name not in WITHOUT_ENGINE:
            environment = found.make()
            environment.reset(**short)
            assert environment.max_turns == turns
    assert found.rows(1, seed=3, max_turns=10**6) == [usual]  # never more than the world has itself
    with pytest.raises(UserError, match="max_turns is 0; write a whole number of turns >= 1"):
        found.module.dataset_rows(1, max_turns=0)


@worlds(SLOW)
def test_every_call_is_a_turn_and_counts_add_up(name: str) -> None:
    found, environment, rows = prepared(name)
    tools = list(tools_of(environment))
    with pytest.raises(ValueError, match="over"):  # before the first reset
        call(found.make(), tools[0])
    choose = found.wanderer(random.Random(0))
    for row in rows[: 2 if name in ENGINES else 8]:
        assert [message["role"] for message in row["prompt"]] == ["user"]
        assert environment.reset(**row, some_other_column=1)
        assert (environment.over, environment.success, environment.turns) == (False, False, 0)
        assert isinstance(environment.get_reward(), float)
        assert set(environment.metrics.values()) == {0}
        while not environment.over and environment.turns < 12 and (chosen := choose(environment)):
            assert chosen[0] in found.spec.tools
            assert getattr(environment, chosen[0])(**chosen[1]).encode()
        metrics = dict(environment.metrics)
        assert all(isinstance(value, int | float) for value in metrics.values())
        assert 0 < metrics["actions"] >= metrics["effective"] + metrics["invalid"] >= 0
        assert 0 <= environment.get_reward() <= 1
    environment.reset(**rows[0] | {"max_turns": 6})
    turns = 0
    while not environment.over:
        assert isinstance(call(environment, tools[turns % len(tools)]), str)
        turns += 1
        assert environment.turns == turns <= 6
    for tool in tools:
        with pytest.raises(ValueError, match="over"):
            call(environment, tool)
    assert environment.turns == turns


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_episodes_are_the_same_again_and_in_a_process_with_other_hashes(name: str) -> None:
    found, _, _ = prepared(name)
    report = check(found, seeds=2)
    assert {finding.name: finding.detail for finding in report.findings if finding.state == "fail"} == {}
    assert any(finding.name == "other process" for finding in report.findings)
    assert len(report.uses) == 4


@worlds()
def test_a_bad_row_is_one_line_or_can_be_played(name: str) -> None:
    _, environment, rows = prepared(name)
    row = {column: value for column, value in rows[0].items() if column != "prompt"}
    names = [*row, *inspect.signature(type(environment).reset).parameters]
    for column in [name for name in dict.fromkeys(names) if name not in ("self", "_")]:
        for value in BAD:
            try:
                environment.reset(**row | {column: value})
                call(environment, next(iter(tools_of(environment))), "a")
                assert not environment.metrics.get("lost"), (column, value)
            except UserError as error:
                text = str(error)
                assert "\n" not in text, (column, value)
                assert 0 < len(text.encode()) < 800, (column, value)


@pytest.mark.parametrize(("name", "columns", "message"), [marked(*case) for case in CASES["refused_rows"]])
def test_a_row_that_cannot_be_played_is_named(name: str, columns: dict[str, Any], message: str) -> None:
    _, environment, rows = prepared(name)
    with pytest.raises(UserError) as error:
        environment.reset(**rows[0] | columns)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "arguments", "message"), [marked(*case) for case in CASES["refused_arguments"]])
def test_rows_that_do_not_exist_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    found, _, _ = prepared(name)
    with pytest.raises(UserError) as error:
        found.module.dataset_rows(**{"count": 1} | arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "level", "digest"), [marked(*case) for case in CASES["rows"]])
def test_rows_are_pinned_to_their_seed(name: str, level: str, digest: str) -> None:
    rows = [{**row, "prompt": None} for row in prepared(name)[0].rows(5, level=level)]
    assert hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16] == digest


SHAPES = [
    " ", "\n", ";", " ;", "move up;", "<action>", "</action>", "[", "(", "(1+", "1,", "- ", "a", "a b", "é", "\u0301", '"', "'",
    "\\", "0", "9", "#", "*", "{", "%", "_", "<", "`", "-", "/*", "--", "U;", "U ", "\ud800", "é; ",
]  # fmt: skip


@worlds(nightly={"swe", "terminal"})  # bash runs each text
def test_calls_take_linear_time(name: str) -> None:
    """Twice the text takes no more than about twice the time, whatever it is made of; many worlds refuse long texts at once."""
    _, environment, rows = prepared(name)

    def ready() -> None:
        if environment.over:
            environment.reset(**rows[0])

    environment.reset(**rows[0])
    for tool, parameters in tools_of(environment).items():
        for parameter in parameters:

            def run(text: str) -> None:
                arguments = dict.fromkeys(parameters, "a") | {parameter: text}  # noqa: B023
                assert isinstance(getattr(environment, tool)(**arguments), str)  # noqa: B023

            for shape in SHAPES:
                slow = too_slow(run, repeated(shape), largest=40_000, ready=ready)
                assert slow is None, (tool, parameter, shape, slow)


PIECES = [
    "", " ", "\n", "\0", "\t", "\ud800", "\udfff", "\u202e", "\u0301", "\u0660", "é", "ß", "İ", "\U0001f600", "\x1b[2J", "\r",
    "'", '"', "`", "\\", "$(reboot)", "; ", "--", "/*", "*/", "%s", "{}", "{0.__class__}", "%n", "../", "~", "|", "&", ">", "<",
    "<tool_call>", "</tool_call>", "<|im_end|>", "<action>", "</action>", "[", "{", "(", ")", "]", "}", "-1", "1e999", "9" * 400,
    "1_0", "nan", "inf", "null", "True", "0x10", "-" * 40, "a" * 300, "move up", "U", "then", ".", ",", ":", "==", "=", "#", "@",
]  # fmt: skip
SUPPORT = Path(__file__).parents[1] / "support"
STATEMENTS = (SUPPORT / "hostile.sql").read_text().splitlines()
CODES = (SUPPORT / "hostile.fs").read_text().splitlines()


def made_up(value: Any, rng: random.Random) -> Any:
    """An argument: one of another type, a real one with pieces in it, pieces alone, or a piece many times."""
    kind = rng.random()
    if kind < 0.15:
        return rng.choice([*HOSTILE, *BAD])
    if kind < 0.3:
        return rng.choice([*PIECES, *STATEMENTS, *CODES])
    if kind < 0.45:
        return rng.choice(PIECES) * rng.choice([2, 100, 5000, 100_000])
    text = str(value)[:10_000] if kind < 0.8 else rng.choice([*STATEMENTS, *CODES])
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice(PIECES) * rng.choice([1, 1, 1, 3]) + text[place + rng.randint(0, 2) :]
    return text


def peak() -> int:
    """Bytes that this process, or the largest that it waited for, had in memory at most."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@worlds()
def test_made_up_calls_are_answered_in_words_in_bounded_time_and_memory(name: str) -> None:
    found, environment, rows = prepared(name)
    count = 350 if os.environ.get("WM_ALL_EXAMPLES") else 60 if name in ENGINES else 250
    rng, answered = random.Random(count), 0
    wanderer, tools, before = found.wanderer(rng), tools_of(environment), peak()
    environment.reset(**rows[0])
    for number in range(count):
        if environment.over or number % 40 == 39:
            environment.reset(**rng.choice(rows) | {"max_turns": 40})
        chosen = wanderer(environment) if rng.random() < 0.5 else None
        if environment.over:  # the wanderer's question may have ended it
            continue
        tool, real = chosen or (rng.choice(sorted(tools)), {})
        arguments = {parameter: made_up(real.get(parameter, ""), rng) for parameter in tools[tool]}
        shown = {parameter: ascii(value)[:200] for parameter, value in arguments.items() if type(value) is str}
        actions, start = environment.metrics["actions"], time.monotonic()
        text = getattr(environment, tool)(**arguments)
        assert time.monotonic() - start < 15, (tool, shown)
        assert isinstance(text, str), (tool, shown)
        assert len(text.encode()) < 20_000, (tool, shown)
        assert peak() - before < 1 << 30, (tool, shown)
        metrics = environment.metrics
        assert metrics["effective"] + metrics["invalid"] <= metrics["actions"] > actions
        assert not metrics.get("lost")
        assert 0 <= environment.get_reward() <= 1
        answered += 1
    assert answered > count / 2


@pytest.mark.parametrize("order", [1, -1])
def test_statements_with_new_ideas(order: int) -> None:
    """One database for all of them: tables and triggers of one statement are there in the next."""
    _, environment, rows = prepared("sql")
    before, start = peak(), time.monotonic()
    environment.reset(**rows[0] | {"max_turns": 10**6})
    for statement in STATEMENTS[::order] * 2:
        assert isinstance(environment.run_query(statement), str), statement
        assert peak() - before < 300 << 20, statement
    assert time.monotonic() - start < 120
