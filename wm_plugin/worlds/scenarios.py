"""Scenarios: many tasks made of a few, along two axes (Qwen-AgentWorld, section 6.1.1).

A *seed scenario* is an initial state and a query: by hand, of a world's row, or of a recorded trajectory. A server writes
variants of the state, in which the query still makes sense, and of the query, in other words, easier, harder or of several
steps; and for each pair what must hold at the end: a rubric for a judge, or a verifier of `rewards.rules`. The prompts are
ours, since the paper prints none.

A file has one scenario a line, an object with these keys; `query` alone is needed:

    {"id": "s1-1", "query": "Refund order 5.", "initial_state": "...", "world_context": "...",
     "tools": ["refund: Refunds an order."], "rubric": ["Order 5 is refunded once."],
     "verifier": {"regex": "refunded"}, "columns": {"order": 5}, "seed": "s1"}

`world_context` is hidden from the agent, `tools` tells the server what an agent can do, `columns` are what the world's `reset`
takes, and `seed` is the scenario that this one was made of.
"""

import inspect
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from wm_plugin.client.answers import Answer, Answers, ask_again
from wm_plugin.data.hidden import HIDDEN
from wm_plugin.data.outputs import atomic
from wm_plugin.data.schema import Trajectory
from wm_plugin.errors import UserError, nearest, shown
from wm_plugin.rewards.rules import MalformedRuleError, RuleReward
from wm_plugin.rewards.rules import read as read_rule
from wm_plugin.untrusted import encodable, loads
from wm_plugin.worlds.kit.protocol import not_a_tool, tool_methods, world_context_of
from wm_plugin.worlds.scenario_replies import PROMPTS, QUERIES, STATES, Refused, conversation, read_reply
from wm_plugin.worlds.worlds import World

MOST = 100_000  # scenarios of a file
_LONGEST = 1 << 20  # bytes of a line
_TRIES = 3  # answers that are asked for, until one can be used
Verify = Literal["rubric", "rule"]


@dataclass(frozen=True)
class Scenario:
    """A task: see the module."""

    query: str
    id: str = ""
    initial_state: str = ""
    world_context: str = ""
    tools: tuple[str, ...] = ()
    rubric: tuple[str, ...] = ()
    verifier: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    seed: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The object of a file's line."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass
class Report:
    """Counts: seeds, scenarios written (the seeds among them), and what was dropped, by reason."""

    seeds: int = 0
    scenarios: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {"seeds": self.seeds, "scenarios": self.scenarios, "dropped": dict(self.dropped)}


def read(path: str | Path) -> list[Scenario]:
    """The scenarios of a file.

    Raises:
        UserError: it cannot be read, or a line is no scenario: names the line and the key.
    """
    scenarios: list[Scenario] = []
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), 1):
                if line.strip():
                    scenarios.append(_scenario(line, f"{path}, line {number}", f"s{number}"))
                if len(scenarios) > MOST:
                    raise UserError(f"{path}: more than {MOST:,} scenarios")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not scenarios:
        raise UserError(f"{path}: no scenario in it")
    if repeated := [name for name, count in Counter(one.id for one in scenarios).items() if count > 1]:
        raise UserError(f"{path}: two scenarios have the id {shown(repeated[0])}")
    return scenarios


def _scenario(line: bytes, where: str, name: str) -> Scenario:
    try:
        value = loads(line, strict=True, largest=_LONGEST, levels=40)
    except ValueError as error:
        raise UserError(f"{where}: no JSON: {shown(str(error))}") from None
    return scenario_of(value, where, name)


def scenario_of(value: Any, where: str, name: str) -> Scenario:
    """The scenario of an object with its keys, called `name` where it has no id.

    Raises:
        UserError: it is none: names the key.
    """
    known = Scenario.__dataclass_fields__
    if not isinstance(value, dict):
        raise UserError(f"{where}: a scenario is an object with {', '.join(known)}")
    if strange := [key for key in value if key not in known]:
        raise UserError(f"{where}: there is no key {shown(strange[0])}{nearest(strange[0], known)}")
    for key in ("query", "id", "initial_state", "world_context", "seed"):
        if not isinstance(value.get(key, ""), str):
            raise UserError(f"{where}: {key} is {shown(value[key])}; write a text")
    for key in ("tools", "rubric"):
        texts = value.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{where}: {key} is {shown(texts)}; write a list of texts")
    if not value.get("query", "").strip():
        raise UserError(f"{where}: query is missing; write what the agent is asked for")
    if not isinstance(value.get("columns", {}), dict):
        raise UserError(f"{where}: columns is {shown(value['columns'])}; write an object")
    try:
        read_rule(value.get("verifier"))
    except MalformedRuleError as error:
        raise UserError(f"{where}: verifier: {error}") from None
    value = encodable(value)
    value |= {key: tuple(value.get(key, ())) for key in ("tools", "rubric")}
    return Scenario(**{**value, "id": value.get("id") or name})


def of_world(world: World, rows: Sequence[Mapping[str, Any]]) -> list[Scenario]:
    """A seed scenario for each row of a world: its prompt, its first observation, and its hidden state."""
    scenarios = []
    for number, row in enumerate(rows, 1):
        environment = world.make()
        first = str(environment.reset(**row))
        tools = [f"{name}: {_line(tool.__doc__)}" for name, tool in tool_methods(environment).items()]
        columns = {name: value for name, value in row.items() if name != "prompt"}
        query = row.get("prompt") or ""
        if not isinstance(query, str):
            query = "\n\n".join(str(message["content"]) for message in query)
        scenarios.append(
            Scenario(
                query=query.strip() or first,
                id=f"{world.name}-{number}",
                initial_state=first,
                world_context=world_context_of(environment),
                tools=tuple(tools),
                columns=columns,
            )
        )
    return scenarios


def of_trajectories(trajectories: Iterable[Trajectory]) -> list[Scenario]:
    """A seed scenario for each task of recorded trajectories: what the agent was asked and could do, and what was hidden from it.

    `wm data context` writes the hidden part where a world has not. A trajectory without a request is left out.
    """
    scenarios: dict[str, Scenario] = {}
    for number, one in enumerate(trajectories, 1):
        context, name = one.context, one.task_id or f"t{number}"
        query = context.initial_state.strip() or context.task.strip()
        if query and name not in scenarios:
            hidden = [text for field in HIDDEN if (text := getattr(context, field))]
            tools = [tool.get("function", tool) for tool in context.action_space]
            scenarios[name] = Scenario(
                query=query,
                id=name,
                world_context="\n\n".join(hidden),
                tools=tuple(f"{tool['name']}: {_line(tool.get('description'))}" for tool in tools if tool.get("name")),
            )
    return list(scenarios.values())


def _line(text: Any) -> str:
    return str(text or "").strip().split("\n")[0]


def expanded(
    seeds: Sequence[Scenario],
    answers: Answers,
    *,
    states: int,
    queries: int,
    verify: Verify = "rubric",
    seed: int = 0,
    report: Report | None = None,
) -> list[Scenario]:
    """The seeds and their variants: each of `states` + 1 states with each of `queries` + 1 queries, each with what is to hold.

    What a reply lacks is asked for again, and dropped after that; so is what is the same as before. A seed keeps the rubric or
    verifier that it has.

    Args:
        states, queries: variants of each seed's state, and for each state of its query.
        report: counts what is dropped.
    """
    report = report or Report()
    report.seeds = len(seeds)
    jobs = [(one, number) for one in seeds for number in range(states)]
    varied = _asked(answers, "state", jobs, [STATES[number % len(STATES)] for _, number in jobs], seed, report)
    in_states = _merged(seeds, [(one, {"initial_state": text}) for one, text in varied], report)
    jobs = [(one, number) for one in in_states for number in range(queries)]
    varied = _asked(answers, "query", jobs, [QUERIES[number % len(QUERIES)] for _, number in jobs], seed, report)
    pairs = _merged(in_states, [(one, {"query": text}) for one, text in varied], report)
    todo = [one for one in pairs if not _is_checked(one)]
    made = _asked(answers, verify, [(one, 0) for one in todo], [""] * len(todo), seed, report)
    key = "rubric" if verify == "rubric" else "verifier"
    whole = {id(one): replace(one, **{key: value}) for one, value in made}
    result = [whole.get(id(one), one) for one in pairs if id(one) in whole or _is_checked(one)]
    ids, counts = {one.id for one in result}, Counter[str]()
    for place, one in enumerate(result):
        name = one.id
        while not name or (not one.id and name in ids):
            counts[one.seed] += 1
            name = f"{one.seed}-{counts[one.seed]}"
        ids.add(name)
        result[place] = replace(one, id=name)
    report.scenarios = len(result)
    return result


def _is_checked(scenario: Scenario) -> bool:
    """Whether it says what must hold at the end."""
    return bool(scenario.rubric) or scenario.verifier is not None


def _asked(
    answers: Answers,
    kind: str,
    jobs: Sequence[tuple[Scenario, int]],
    angles: Sequence[str],
    seed: int,
    report: Report,
) -> list[tuple[Scenario, Any]]:
    """(scenario, what a reply says) for each job whose reply can be used, in order."""
    found: dict[int, Any] = {}
    reasons: dict[int, str] = {}

    def question(number: int, _: int) -> list[dict[str, Any]]:
        scenario, variant = jobs[number]
        return conversation(kind, scenario.as_dict(), angles[number], variant + 1)

    def settle(number: int, answer: Answer) -> bool:
        if answer.trouble:
            reasons[number] = f"{kind}: {answer.trouble}"
            return False
        try:
            found[number] = read_reply(kind, answer.text)
        except Refused as error:
            reasons[number] = f"{kind}: {error}"
            return False
        return True

    assert kind in PROMPTS
    ask_again(answers, range(len(jobs)), question, settle, tries=_TRIES, seed=zlib.crc32(f"{kind}/{seed}".encode()))
    report.dropped.update(reasons[number] for number in range(len(jobs)) if number not in found)
    return [(jobs[number][0], found[number]) for number in sorted(found)]


def _merged(
    scenarios: Sequence[Scenario], variants: Sequence[tuple[Scenario, dict[str, str]]], report: Report
) -> list[Scenario]:
    """Each scenario followed by its variants, without those that are there already."""
    by_scenario: dict[int, list[dict[str, str]]] = {}
    for one, changes in variants:
        by_scenario.setdefault(id(one), []).append(changes)
    seen = {_same(one) for one in scenarios}
    merged = []
    for one in scenarios:
        merged.append(one)
        for changes in by_scenario.get(id(one), ()):
            new = replace(one, **changes, id="", rubric=(), verifier=None, seed=one.seed or one.id)  # type: ignore[arg-type]
            if _same(new) in seen:
                report.dropped["duplicate"] += 1
                continue
            seen.add(_same(new))
            merged.append(new)
    return merged


def _same(scenario: Scenario) -> tuple[str, str]:
    return (" ".join(scenario.initial_state.split()).casefold(), " ".join(scenario.query.split()).casefold())


def write(scenarios: Iterable[Scenario], out: Path) -> None:
    """Write a file of scenarios, completely or not at all."""
    with atomic(out) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        for one in scenarios:
            file.write(json.dumps(one.as_dict(), ensure_ascii=False) + "\n")


def dataset_rows(count: int | None = None, seed: int = 0, held_out: bool = False, *, path: str) -> list[dict[str, Any]]:
    """Rows of a file of scenarios, for `staged` worlds behind `simulated`.

    Columns: `prompt`, the query; `initial_state` and `world_context`, which `staged` takes; those of the world's `reset`;
    `task_id`; `rubric` and `verifier` as texts; and `context`, the query, the state and the rubric for a judge. About a fifth of
    the seeds, by their ids, is held out with all its variants.

    Args:
        count: rows; None takes each scenario once. Training rows are repeated as often as needed.

    Raises:
        UserError: the file cannot be read, or has too few held-out scenarios.
    """
    return rows_of(read(path), count, seed, held_out, path)


def rows_of(made: Sequence[Scenario], count: int | None, seed: int, held_out: bool, path: str) -> list[dict[str, Any]]:
    """Rows of scenarios: see `dataset_rows`."""
    kept = [one for one in made if (zlib.crc32((one.seed or one.id).encode()) % 5 == 0) == held_out]
    if not kept or (held_out and count is not None and count > len(kept)):
        kind = "held-out" if held_out else "training"
        raise UserError(f"{path} has {len(kept)} {kind} scenarios, and {count or 'some'} are asked for")
    rng = random.Random(seed * 2 + held_out)
    picked: list[Scenario] = []
    while len(picked) < (len(kept) if count is None else count):
        picked += rng.sample(kept, len(kept))
    return [row_of(one) for one in picked[: len(kept) if count is None else count]]


def row_of(scenario: Scenario) -> dict[str, Any]:
    """A scenario as a row: see `dataset_rows`."""
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
    """Whether a row's `verifier` holds for the agent's answer, 0 or 1: a `rule` of `simulated`."""
    return _rules()([answer], [""], verifier=[columns.get("verifier")])[0]


@lru_cache
def _rules() -> RuleReward:
    return RuleReward(malformed="count")


@lru_cache
def staged(environment: type) -> type:
    """The class with the initial state and the hidden state of a row's scenario in the place of its own.

    `simulated` makes it where its config says `scenarios`: the world model goes on from that state, which the world itself does
    not have. A row without `initial_state` begins as the world does.
    """

    class Staged(environment):  # type: ignore[misc]
        def reset(self, *args: Any, initial_state: str = "", world_context: str = "", **columns: Any) -> str:
            self._wm_hidden = world_context if isinstance(world_context, str) else ""
            first = str(super().reset(*args, **columns))
            return initial_state if isinstance(initial_state, str) and initial_state else first

        @not_a_tool
        def world_context(self) -> str:
            """The hidden state of the scenario, or the world's."""
            inner = getattr(super(), "world_context", None)
            return self._wm_hidden or (inner() if inner is not None else "")

    signature = inspect.signature(environment.reset)  # type: ignore[attr-defined]  # the world's columns, of which a row may lack one
    taken = [one for one in signature.parameters.values() if one.name not in ("initial_state", "world_context")]
    rest = [taken.pop()] if taken and taken[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="")
        for name in ("initial_state", "world_context")
    ]
    Staged.reset.__signature__ = signature.replace(parameters=[*taken, *own, *rest])  # type: ignore[attr-defined]
    Staged.__name__, Staged.__qualname__ = environment.__name__, environment.__qualname__
    Staged.__doc__, Staged.__module__ = environment.__doc__, environment.__module__
    return Staged
