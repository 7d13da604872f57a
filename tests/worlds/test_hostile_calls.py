"""Tool calls that a policy may make up, in every world: each is answered in words, in bounded time and memory."""

import os
import random
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from support.rows import BAD
from wm_plugin.errors import MissingExtraError
from wm_plugin.worlds.check import HOSTILE
from wm_plugin.worlds.kit.protocol import tool_methods, tool_names
from wm_plugin.worlds.specs import SPECS
from wm_plugin.worlds.worlds import _parameters, load

SLOW = {"alfworld", "forth", "scienceworld", "tau2", "textworld"}  # they start programs
WORLDS = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SPECS]
COUNT = 350 if os.environ.get("WM_ALL_EXAMPLES") else 60  # calls a world
SECONDS, BYTES = 15.0, 1 << 30  # of a call, and more of memory than before it

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


def play(name: str, count: int, seed: int) -> tuple[int, float]:
    """Make so many calls; returns how many were answered as usual, and the seconds of the slowest."""
    loaded = load(name)
    if missing := loaded.missing():
        pytest.skip(f"{name} needs {', '.join(missing)}")
    try:
        rows, environment = loaded.some_rows(8), loaded.make()
    except MissingExtraError as error:
        pytest.skip(str(error))
    rng, answered, slowest = random.Random(seed), 0, 0.0
    wanderer = loaded.wanderer(rng)
    environment.reset(**rows[0])
    tools = tool_methods(environment)
    parameters = {tool: list(_parameters(getattr(loaded.environment, tool))) for tool in tool_names(loaded.environment)}
    before = peak()
    for number in range(count):
        if environment.over or number % 40 == 39:
            environment.reset(**rng.choice(rows) | {"max_turns": 40})
        call = wanderer(environment) if rng.random() < 0.5 else None
        tool, arguments = call or (rng.choice(sorted(tools)), {})
        arguments = {parameter: made_up(arguments.get(parameter, ""), rng) for parameter in parameters[tool]}
        if environment.over:  # the wanderer's question may have ended it
            continue
        start = time.monotonic()
        text = tools[tool](**arguments)
        seconds = time.monotonic() - start
        shown = {parameter: ascii(value)[:200] for parameter, value in arguments.items() if type(value) is str}
        assert isinstance(text, str), (tool, shown)
        text.encode()
        assert len(text) < 20_000, (tool, shown)
        assert seconds < SECONDS, (tool, shown)
        assert peak() - before < BYTES, (tool, shown)
        assert 0 <= environment.get_reward() <= 1
        answered += 1
        slowest = max(slowest, seconds)
    return answered, slowest


@pytest.mark.host
@pytest.mark.parametrize("name", WORLDS)
def test_made_up_calls_are_answered(name: str) -> None:
    answered, _ = play(name, COUNT, seed=COUNT)
    assert answered > COUNT / 2


@pytest.mark.parametrize("order", [1, -1])
def test_statements_with_new_ideas(order: int) -> None:
    """One database for all of them: tables and triggers of one statement are there in the next."""
    loaded = load("sql")
    environment = loaded.make()
    row = loaded.rows(1)[0]
    before, start = peak(), time.monotonic()
    environment.reset(**row | {"max_turns": 10**6})
    for statement in STATEMENTS[::order] * 2:
        assert isinstance(environment.run_query(statement), str), statement
        assert peak() - before < 300 << 20, statement
    assert time.monotonic() - start < 120
