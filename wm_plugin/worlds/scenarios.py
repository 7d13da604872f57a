"""Scenarios: tasks in a file, each with an initial state and a query (Qwen-AgentWorld, section 6.1.1).

A file has one scenario a line, an object with these keys; only `query` is required:

    {"id": "s1-1", "query": "Refund order 5.", "initial_state": "...", "world_context": "...",
     "tools": ["refund: Refunds an order."], "rubric": ["Order 5 is refunded once."],
     "verifier": {"regex": "refunded"}, "columns": {"order": 5}, "seed": "s1"}

`world_context` is hidden from the agent, `tools` tells the server that writes variants what an agent can do, `columns` are
arguments of the world's `reset`, and `seed` names the scenario that this one was made of. `lab.synthesis.scenarios` expands them.
"""

import inspect
import json
import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import field_validator

from wm_plugin.errors import UserError, shown
from wm_plugin.hosting.world import not_a_tool
from wm_plugin.options import Options, option
from wm_plugin.rewards.rules import MalformedRuleError, RuleReward
from wm_plugin.rewards.rules import read as read_rule
from wm_plugin.untrusted import encodable, loads
from wm_plugin.worlds.kit.rows import repeated

MOST = 100_000  # scenarios of a file
_LONGEST = 1 << 20  # bytes of a line
_STATE = ("initial_state", "world_context")


class Scenario(Options):
    """One task; the module describes its fields."""

    example = '{"query": "Refund order 5."}'

    query: str = option("What the agent is asked for.")
    id: str = option("Its name.", default="")
    initial_state: str = option("What the agent sees first.", default="")
    world_context: str = option("What only a world model sees.", default="")
    tools: tuple[str, ...] = option("A line for each tool.", default=(), write="a list of texts")
    rubric: tuple[str, ...] = option("What must hold at the end.", default=(), write="a list of texts")
    verifier: Any = option("A rule on the agent's answer.", default=None)
    columns: dict[str, Any] = option("What the world's `reset` takes.", default={})
    seed: str = option("The scenario that this one was made of.", default="")

    @field_validator("verifier")
    @classmethod
    def _is_rule(cls, rule: Any) -> Any:
        try:
            read_rule(rule)
        except MalformedRuleError as error:
            raise UserError(f"verifier: {error}") from None
        return rule


def read(path: str | Path) -> list[Scenario]:
    """Read the scenarios of a file."""
    scenarios: list[Scenario] = []
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), 1):
                if line.strip():
                    scenarios.append(_of_line(line, f"{path}, line {number}", f"s{number}"))
                if len(scenarios) > MOST:
                    raise UserError(f"{path}: more than {MOST:,} scenarios")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not scenarios:
        raise UserError(f"{path}: no scenario in it")
    if twice := [name for name, count in Counter(one.id for one in scenarios).items() if count > 1]:
        raise UserError(f"{path}: two scenarios have the id {shown(twice[0])}")
    return scenarios


def _of_line(line: bytes, where: str, name: str) -> Scenario:
    try:
        value = loads(line, strict=True, largest=_LONGEST, levels=40)
    except ValueError as error:
        raise UserError(f"{where}: no JSON: {shown(str(error))}") from None
    return scenario_of(value, where, name)


def scenario_of(value: Any, where: str, name: str) -> Scenario:
    """Make a scenario of an object, with the id `name` if it has none."""
    try:
        scenario = Scenario.read(encodable(value))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not scenario.query.strip():
        raise UserError(f"{where}: query is missing; write what the agent is asked for")
    return scenario if scenario.id else scenario.replace(id=name)


def dataset_rows(count: int | None = None, seed: int = 0, held_out: bool = False, *, path: str) -> list[dict[str, Any]]:
    """Make rows of a file of scenarios, for `staged` worlds behind `simulated`.

    The columns are those of the world's `reset`; `prompt`, the query; `initial_state` and `world_context`; `task_id`; `rubric`
    and `verifier` as texts; and `context`, the query, state and rubric for a judge. A fifth of the seeds, by their ids, is held
    out with all variants.

    Args:
        count: rows; None takes each scenario once. Training rows are repeated as often as needed.
    """
    return rows_of(read(path), count, seed, held_out, path)


def rows_of(made: Sequence[Scenario], count: int | None, seed: int, held_out: bool, path: str) -> list[dict[str, Any]]:
    """Make rows of scenarios, as `dataset_rows` does."""
    kept = [one for one in made if (zlib.crc32((one.seed or one.id).encode()) % 5 == 0) == held_out]
    if not kept or (held_out and count is not None and count > len(kept)):
        kind = "held-out" if held_out else "training"
        raise UserError(
            f"{path} has {len(kept)} {kind} scenarios, and {count or 'some'} are asked for; write more (one in five is held "
            "out, by its seed or id)"
        )
    rng = random.Random(seed * 2 + held_out)
    return [row_of(one) for one in repeated(rng, kept, len(kept) if count is None else count)]


def row_of(scenario: Scenario) -> dict[str, Any]:
    rubric = "\n".join(f"- {line}" for line in scenario.rubric)
    parts = {"Task": scenario.query, "Initial state": scenario.initial_state, "What must hold at the end": rubric}
    return {
        **scenario.columns,
        "prompt": [{"role": "user", "content": f"{scenario.query}\n\n"}],
        "task_id": scenario.id,
        "initial_state": scenario.initial_state,
        "world_context": scenario.world_context,
        "rubric": rubric,
        "verifier": "" if scenario.verifier is None else json.dumps(scenario.verifier),
        "context": "\n\n".join(f"# {name}\n{text}" for name, text in parts.items() if text),
    }


def verified(answer: str, columns: Mapping[str, Any]) -> float:
    """Score an answer by the row's `verifier`, 0 or 1: a `rule` of `simulated`."""
    return _rules()([answer], [""], verifier=[columns.get("verifier")])[0]


@lru_cache
def _rules() -> RuleReward:
    return RuleReward(malformed="count")


@lru_cache
def staged(environment: type) -> type:
    """Return the class with the initial state and the hidden state of a row's scenario in the place of its own.

    `simulated` applies it when its config says `scenarios`: the world model goes on from that state, which the world itself does
    not have. A row without `initial_state` begins as the world does.
    """

    class Staged(environment):  # type: ignore[misc]
        def reset(self, *args: Any, initial_state: str = "", world_context: str = "", **columns: Any) -> str:
            self._wm_hidden = world_context if isinstance(world_context, str) else ""
            first = str(super().reset(*args, **columns))
            return initial_state if isinstance(initial_state, str) and initial_state else first

        @not_a_tool
        def world_context(self) -> str:
            """The scenario's hidden state, or the world's."""
            inner = getattr(super(), "world_context", None)
            return self._wm_hidden or (inner() if inner is not None else "")

    signature = inspect.signature(environment.reset)  # type: ignore[attr-defined]  # of which a row may lack columns
    taken = [one for one in signature.parameters.values() if one.name not in _STATE]
    rest = [taken.pop()] if taken and taken[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="") for name in _STATE]
    Staged.reset.__signature__ = signature.replace(parameters=[*taken, *own, *rest])  # type: ignore[attr-defined]
    Staged.__name__, Staged.__qualname__ = environment.__name__, environment.__qualname__
    Staged.__doc__, Staged.__module__ = environment.__doc__, environment.__module__
    return Staged
