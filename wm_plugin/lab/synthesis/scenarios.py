"""Expand a few scenarios to many along two axes, by a server's replies (Qwen-AgentWorld, section 6.1.1).

A server writes variants of each initial state, in which the query still makes sense, and of each query: in other words, easier,
harder or of several steps. For each pair it writes what must hold at the end: a rubric for a judge, or a verifier of
`rewards.rules`. A reply is untrusted, and so is a scenario.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from wm_plugin.client.answers import Answer, Answers, ask_again
from wm_plugin.data.hidden import HIDDEN
from wm_plugin.data.outputs import atomic
from wm_plugin.data.schema import Trajectory
from wm_plugin.hosting.world import tool_methods
from wm_plugin.rewards.delimit import fenced, neutral, shortened
from wm_plugin.rewards.extract import extract
from wm_plugin.rewards.rules import MalformedRuleError, has_code
from wm_plugin.rewards.rules import read as read_rule
from wm_plugin.tokens.message import Message
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.protocol import world_context_of
from wm_plugin.worlds.scenarios import Scenario
from wm_plugin.worlds.worlds import World

TAG = "scenario"
Verify = Literal["rubric", "rule"]
_TRIES = 3  # requests for one reply that can be used
_LONGEST = {"state": 20_000, "query": 4_000, "rubric": 500}  # characters of a text
_MOST_LINES = 12  # of a rubric
_SHOWN = 20_000  # characters of a text in a request
_TEXTS = yaml.safe_load(Path(__file__).with_name("scenarios.yaml").read_text(encoding="utf-8"))
PROMPTS = {kind: f"{_TEXTS['head']} {text}" for kind, text in _TEXTS["prompts"].items()}
_ANGLES = {"state": _TEXTS["states"], "query": _TEXTS["queries"]}  # that variants take in turn
_FORMS: dict[str, tuple[str, str]] = _TEXTS["forms"]  # the key of a reply, and its form


class Refused(ValueError):
    """A reply that cannot be used. The message is the reason, for counting."""


@dataclass
class Report:
    """Counts: seeds, scenarios (the seeds among them), and dropped variants by reason."""

    seeds: int = 0
    scenarios: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {"seeds": self.seeds, "scenarios": self.scenarios, "dropped": dict(self.dropped)}


def of_world(world: World, rows: Sequence[Mapping[str, Any]]) -> list[Scenario]:
    """Make a seed scenario of each row: its prompt, first observation and hidden state."""
    scenarios = []
    for number, row in enumerate(rows, 1):
        environment = world.make()
        first = str(environment.reset(**row))
        query = row.get("prompt") or ""
        if not isinstance(query, str):
            query = "\n\n".join(str(message["content"]) for message in query)
        scenarios.append(
            Scenario(
                query=query.strip() or first,
                id=f"{world.name}-{number}",
                initial_state=first,
                world_context=world_context_of(environment),
                tools=tuple(f"{name}: {_line(tool.__doc__)}" for name, tool in tool_methods(environment).items()),
                columns={name: value for name, value in row.items() if name != "prompt"},
            )
        )
    return scenarios


def of_trajectories(trajectories: Iterable[Trajectory]) -> list[Scenario]:
    """Make a seed scenario of each task: its request, its tools and its hidden state. A trajectory without a request is skipped.

    Where a world gives no hidden state, `wm lab context` writes it.
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
    """Return the seeds and their variants: `states` + 1 states, each with `queries` + 1 queries, each with a rubric or verifier.

    A reply that cannot be used is asked for again, and dropped after that; duplicates are dropped too. A seed keeps its own
    rubric or verifier. `report` counts what is dropped.
    """
    report = report or Report()
    report.seeds = len(seeds)
    jobs = [(one, number) for one in seeds for number in range(states)]
    varied = _asked(answers, "state", jobs, _angles("state", jobs), seed, report)
    in_states = _merged(seeds, [(one, {"initial_state": text}) for one, text in varied], report)
    jobs = [(one, number) for one in in_states for number in range(queries)]
    varied = _asked(answers, "query", jobs, _angles("query", jobs), seed, report)
    pairs = _merged(in_states, [(one, {"query": text}) for one, text in varied], report)
    todo = [one for one in pairs if not _is_checked(one)]
    made = _asked(answers, verify, [(one, 0) for one in todo], [""] * len(todo), seed, report)
    whole = {id(one): one.replace(**{_FORMS[verify][0]: value}) for one, value in made}
    result = [whole.get(id(one), one) for one in pairs if id(one) in whole or _is_checked(one)]
    ids, counts = {one.id for one in result}, Counter[str]()
    for place, one in enumerate(result):
        name = one.id
        while not name or (not one.id and name in ids):
            counts[one.seed] += 1
            name = f"{one.seed}-{counts[one.seed]}"
        ids.add(name)
        result[place] = one.replace(id=name)
    report.scenarios = len(result)
    return result


def _angles(kind: str, jobs: Sequence[tuple[Scenario, int]]) -> list[str]:
    return [_ANGLES[kind][number % len(_ANGLES[kind])] for _, number in jobs]


def _is_checked(scenario: Scenario) -> bool:
    return bool(scenario.rubric) or scenario.verifier is not None


def _asked(
    answers: Answers, kind: str, jobs: Sequence[tuple[Scenario, int]], angles: Sequence[str], seed: int, report: Report
) -> list[tuple[Scenario, Any]]:
    """Return (scenario, value) for each job whose reply can be used, in order."""
    found: dict[int, Any] = {}
    reasons: dict[int, str] = {}

    def question(number: int, _: int) -> list[dict[str, Any]]:
        scenario, variant = jobs[number]
        return conversation(kind, scenario.model_dump(), angles[number], variant + 1)

    def settle(number: int, answer: Answer) -> bool:
        try:
            if answer.trouble:
                raise Refused(answer.trouble)
            found[number] = read_reply(kind, answer.text)
        except Refused as error:
            reasons[number] = f"{kind}: {error}"
            return False
        return True

    ask_again(answers, range(len(jobs)), question, settle, tries=_TRIES, seed=zlib.crc32(f"{kind}/{seed}".encode()))
    report.dropped.update(reasons[number] for number in range(len(jobs)) if number not in found)
    return [(jobs[number][0], found[number]) for number in sorted(found)]


def _merged(
    scenarios: Sequence[Scenario], variants: Sequence[tuple[Scenario, dict[str, str]]], report: Report
) -> list[Scenario]:
    """Return each scenario followed by its variants, without duplicates."""
    by_scenario: dict[int, list[dict[str, str]]] = {}
    for one, changes in variants:
        by_scenario.setdefault(id(one), []).append(changes)
    seen = {_same(one) for one in scenarios}
    merged = []
    for one in scenarios:
        merged.append(one)
        for changes in by_scenario.get(id(one), ()):
            new = one.replace(**changes, id="", rubric=(), verifier=None, seed=one.seed or one.id)
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
            file.write(json.dumps(one.model_dump(mode="json"), ensure_ascii=False) + "\n")


def conversation(kind: str, scenario: Mapping[str, Any], angle: str, number: int) -> list[Message]:
    """Return the request for variant `number`, from 1, of a kind of `PROMPTS`; `angle` says how it is to differ."""
    told = PROMPTS[kind].format(angle=angle).strip()
    told += f"\n\nEnd your reply with one JSON object in <{TAG}> and </{TAG}>, and nothing after it: {_FORMS[kind][1]}"
    texts = {
        "initial_state": scenario["initial_state"],
        "hidden_state": scenario["world_context"],
        "request": scenario["query"],
        "tools": "\n".join(scenario["tools"]),
    }
    data, _ = fenced({name: shortened(text, _SHOWN) for name, text in texts.items() if text.strip()})
    closing = "The data ends here."
    if kind in ("state", "query"):
        closing += f" This is variant {number}: let it differ from others."
    return [{"role": "system", "content": told}, {"role": "user", "content": f"{data}\n\n{closing}"}]


def read_reply(kind: str, text: str) -> Any:
    """Return a reply's state, query, rubric lines or verifier, in time linear in its length.

    Raises:
        Refused: the reply cannot be used.
    """
    inside = extract(text, TAG).prediction
    if inside is None:
        raise Refused("no tag")
    try:
        value = loads(inside, strict=True, largest=1 << 17, levels=30)
    except ValueError:
        raise Refused("no JSON") from None
    key = _FORMS[kind][0]
    if not isinstance(value, dict) or list(value) != [key]:
        raise Refused("other keys")
    if kind == "rule":
        return _rule(value[key])
    if kind != "rubric":
        return _text(value[key], kind)
    if not isinstance(value[key], list) or not value[key]:
        raise Refused("empty")
    if len(value[key]) > _MOST_LINES:
        raise Refused("too long")
    return tuple(_text(line, kind) for line in value[key])


def _text(value: Any, kind: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused("empty")
    if len(value) > _LONGEST[kind]:
        raise Refused("too long")
    if neutral(value)[0] != value:  # marks of chat templates, of verdicts, or invisible characters
        raise Refused("marks")
    return value.strip()


def _rule(value: Any) -> Any:
    try:
        rule = read_rule(value)
    except MalformedRuleError:
        raise Refused("malformed rule") from None
    if rule is None:
        raise Refused("empty")
    if has_code(rule):
        raise Refused("code")
    return value
