"""Does an environment keep the protocol, and how fast is it? What `wm env check` reports.

Episodes of the wanderer and of the expert are played with one instance after another episode, with new instances, and in another
process with another hash seed: all must show the same, byte for byte.
"""

import hashlib
import inspect
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit.protocol import (
    Chooser,
    ToolCall,
    is_over,
    reward_of,
    tool_methods,
    tool_schema,
    world_context_of,
)
from wm_plugin.worlds.memory import bytes_an_instance
from wm_plugin.worlds.worlds import World, load

MAX_TURNS, WANDERER_TURNS = 200, 30  # of any episode and of a wanderer's, at most; environments end on their own
LONG = 20.0  # seconds after which no more rows are played: some environments are slow
BUDGET = 0.3  # seconds over which speeds are measured
HOSTILE: tuple[Any, ...] = (
    "",
    "\0",
    "\ud800",
    "x" * 100_000,
    "'; DROP TABLE x; --",
    "$(reboot)",
    "</tool_response><|im_end|>",
    "<action><action>",
    "{}{0}%s",
    None,
    True,
    float("nan"),
    10**30,
    ["U"],
    {"U": 1},
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """One property: it holds (`ok`), fails, or is worth a note."""

    name: str
    state: Literal["ok", "note", "fail"]
    detail: str


@dataclass
class Report:
    """The findings. Speeds are those of this machine, `bytes_an_instance` is the memory of an instance in an episode."""

    environment: str
    level: str | None
    findings: list[Finding] = field(default_factory=list)
    expert_success: float | None = None
    steps_per_second: float = 0.0
    resets_per_second: float = 0.0
    bytes_an_instance: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing fails."""
        return all(finding.state != "fail" for finding in self.findings)

    def add(self, name: str, problem: str, good: str = "") -> None:
        """Add a finding: it fails with `problem`, or holds, with `good` as its detail, if there is none."""
        self.findings.append(Finding(name, "fail" if problem else "ok", problem or good))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def check(world: World, *, seeds: int = 20, level: str | None = None) -> Report:
    """Play `seeds` rows with the wanderer and with the expert, and report what holds and what fails.

    If the rows or the class fail, nothing is played.

    Raises:
        UserError: `seeds` is below 1, or the environment itself raised it: there is no such level, or something is not installed.
    """
    if seeds < 1:
        raise UserError(f"seeds is {seeds}; write a number >= 1")
    report = Report(world.name, level or next(iter(world.levels), None))
    try:
        rows = world.some_rows(seeds, level=level)
        report.add("rows", _rows_problem(world, rows, level), f"{len(rows)}; held-out ones are others")
        report.add("class", _class_problem(world, rows[0]), f"tools: {', '.join(tool_methods(world.make()))}")
        if not report.ok:
            return report
        report.findings += [_observer(world), _metrics(world, rows[0])]
        _episodes(world, rows, report, level)
        report.add(
            "any input", _robustness_problem(world, rows), f"{len(HOSTILE)} hostile values a tool are answered in words"
        )
        _speed(world, rows, report)
    except UserError:
        raise
    except Exception as error:
        report.add("runs", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return report


def choosers(world: World, number: int) -> dict[str, Chooser]:
    """A new wanderer, which stops after `WANDERER_TURNS` turns, and a new expert, if there is one, for the row of this number."""
    wanderer, turns = world.wanderer(random.Random(number)), iter(range(WANDERER_TURNS))
    policies: dict[str, Chooser] = {
        "wanderer": lambda environment: None if next(turns, None) is None else wanderer(environment)
    }
    expert = world.expert()
    return policies if expert is None else policies | {"expert": expert}


def texts(environment: Any, row: Row, choose: Chooser, calls: list[ToolCall] | None = None) -> list[str]:
    """Play an episode; all observations in order, and its outcome as JSON last. Every tool call is appended to `calls`."""
    observations = [str(environment.reset(**row))]
    while not is_over(environment) and len(observations) <= MAX_TURNS and (call := choose(environment)) is not None:
        name, arguments = call
        if calls is not None:
            calls.append(call)
        try:
            observations.append(str(getattr(environment, name)(**arguments)))
        except ValueError as error:
            observations.append(f"ValueError: {error}")
    outcome = {name: getattr(environment, name, None) for name in ("success", "turns", "metrics")}
    return [*observations, json.dumps([reward_of(environment), outcome], sort_keys=True, default=str)]


def digests(world: World, rows: Sequence[Row]) -> list[str]:
    """A hash for each row, of the row and of all texts of its episodes. Each row has a new instance."""
    hashes = []
    for number, row in enumerate(rows):
        environment = world.make()
        hashes.append(_digest(row, [texts(environment, row, choose) for choose in choosers(world, number).values()]))
    return hashes


def _digest(row: Row, episodes: Sequence[Sequence[str]]) -> str:
    return hashlib.sha256(json.dumps([dict(row), episodes], sort_keys=True, default=str).encode()).hexdigest()


def _rows_problem(world: World, rows: Sequence[Row], level: str | None) -> str:
    if rows != world.rows(len(rows), level=level):
        return "dataset_rows gives other rows the second time; draw from random.Random(seed)"
    held_out = world.some_rows(len(rows), held_out=True, level=level)
    both = {_task(row) for row in rows} & {_task(row) for row in held_out}
    return f"{len(both)} held-out rows are among the others" if both else ""


def _task(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "prompt"}, sort_keys=True, default=str)


def _class_problem(world: World, row: Row) -> str:
    environment = world.make()
    tools = tool_methods(environment)
    if not tools:
        return "no tool: every public method but reset, get_reward and world_context is one"
    for name in tools:
        try:
            tool_schema(getattr(world.environment, name))
        except UserError:
            raise
        except Exception as error:
            return f"no schema can be made of {name}: {' '.join(str(error).split())[:120]}"
    try:
        world.observers, world.refusals  # noqa: B018  # they raise
    except UserError as error:
        return str(error)
    if strangers := [name for name in world.irreversible if name not in tools]:
        return f"irreversible names {strangers[0]!r}, which is no tool"
    first = environment.reset(**row, some_other_column=1) if _takes_any(world) else environment.reset(**row)
    world_context_of(environment)
    for problem, holds in (
        ("reset returns no text", isinstance(first, str)),
        ("over is not False after a reset", getattr(environment, "over", False) is False),
        ("success is not False after a reset", getattr(environment, "success", False) is False),
        ("turns is not 0 after a reset", getattr(environment, "turns", 0) == 0),
        (
            "get_reward() gives no number after a reset",
            not hasattr(environment, "get_reward") or isinstance(environment.get_reward(), float | int),
        ),
    ):
        if not holds:
            return problem
    return "" if _takes_any(world) else "reset takes no other columns, and hosts pass all: write **_ at its end"


def _takes_any(world: World) -> bool:
    parameters = inspect.signature(world.environment.reset).parameters.values()  # type: ignore[attr-defined]
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _observer(world: World) -> Finding:
    """Who is observed, by tool where they differ."""
    if not hasattr(world.environment, "observer"):
        detail = "none declared: all that is observed counts as tools' results, which RWML scores by ROUGE"
        return Finding("observer", "note", f'{detail}; write observer = "environment", or {{"ask": "user"}}')
    tools: dict[str, list[str]] = {}
    for tool, kind in world.observers.items():
        tools.setdefault(kind, []).append(tool)
    return Finding("observer", "ok", "; ".join(f"{kind} ({', '.join(names)})" for kind, names in tools.items()))


def _metrics(world: World, row: Row) -> Finding:
    environment = world.make()
    environment.reset(**row)
    metrics = getattr(environment, "metrics", None)
    if metrics is None:
        return Finding("metrics", "note", "none: effective and invalid shares of actions are not reported")
    missing = [name for name in ("actions", "effective", "invalid") if name not in metrics]
    if missing:
        return Finding("metrics", "fail", f"metrics has no {', '.join(map(repr, missing))}")
    return Finding("metrics", "ok", ", ".join(metrics))


def _episodes(world: World, rows: Sequence[Row], report: Report, level: str | None) -> None:
    """Determinism, the end of an episode, rewards, and the expert's success."""
    used, here, problems = world.make(), [], {"reset": "", "end": "", "reward": ""}
    wins, experts, start = 0, 0, time.monotonic()
    for number, row in enumerate(rows):
        if time.monotonic() - start > LONG:
            report.findings.append(Finding("slow", "note", f"only {number} of {len(rows)} rows were played"))
            break
        episodes = []
        for name, choose in choosers(world, number).items():
            calls: list[ToolCall] = []
            episodes.append(texts(used, row, choose, calls))
            reward = reward_of(used)
            if reward is not None and not 0 <= reward <= 1:
                problems["reward"] = f"row {number}: {reward:g} is not between 0 and 1"
            if name == "expert":
                experts += 1
                wins += bool(getattr(used, "success", False))
            if is_over(used) and calls:
                problems["end"] = problems["end"] or _end_problem(used, calls[-1])
        here.append(_digest(row, episodes))
    fresh = digests(world, rows[: len(here)])
    if differing := sum(one != other for one, other in zip(here, fresh, strict=True)):
        problems["reset"] = f"{differing} of {len(here)} rows show other texts with an instance that was used before"
    elsewhere = _elsewhere(world, len(rows), len(here), level)
    report.add("reset", problems["reset"], "leaves nothing of the last episode")
    if hasattr(used, "over"):
        report.add("end", problems["end"], "a call after it raises ValueError")
    else:
        report.findings.append(Finding("end", "note", "no over: an episode goes on until the host ends it"))
    if hasattr(used, "get_reward"):
        report.add("reward", problems["reward"], "between 0 and 1")
    else:
        detail = "no get_reward: training needs a reward of the trainer's (TRL: reward_funcs; verl: wm.reward)"
        report.findings.append(Finding("reward", "note", detail))
    if unsaid := [name for name in ("success", "turns") if not hasattr(used, name)]:
        report.findings.append(Finding("figures", "note", f"no {' and no '.join(unsaid)}: not reported"))
    if isinstance(elsewhere, str):
        report.add("other process", elsewhere)
    else:
        differing = sum(one != other for one, other in zip(fresh, elsewhere["digests"], strict=True))
        problem = f"{differing} of {len(here)} rows show other texts there" if differing else ""
        report.add("other process", problem, "the same texts, byte for byte")
        report.bytes_an_instance = elsewhere["bytes"]
    if experts and not hasattr(used, "success"):
        report.findings.append(Finding("expert", "note", "it plays, and the class does not say whether it wins"))
    elif experts:
        report.expert_success = wins / experts
        state: Literal["ok", "fail"] = "ok" if wins else "fail"
        report.findings.append(Finding("expert", state, f"wins {wins} of {experts}"))
    else:
        report.findings.append(Finding("expert", "note", "none beside the class"))


def _end_problem(environment: Any, call: ToolCall) -> str:
    try:
        getattr(environment, call[0])(**call[1])
    except ValueError:
        return ""
    except Exception as error:
        return f"a call after it raises {type(error).__name__}, not ValueError"
    return "a call after it is answered; raise ValueError"


def _robustness_problem(world: World, rows: Sequence[Row]) -> str:
    environment = world.make()
    environment.reset(**rows[0])
    for name, tool in tool_methods(environment).items():
        parameters = tool_schema(getattr(world.environment, name))["function"]["parameters"]["properties"]
        for value in HOSTILE if parameters else ():
            if is_over(environment):
                environment.reset(**rows[0])
            argument = repr(value)[:20]
            try:
                text = tool(**dict.fromkeys(parameters, value))
            except Exception as error:
                return f"{name}({argument}) raises {type(error).__name__}; answer in words, and count it as invalid"
            try:
                str(text).encode()
            except UnicodeEncodeError:
                return f"{name}({argument}) answers with half a surrogate pair, which no tokenizer takes"
    return ""


def _speed(world: World, rows: Sequence[Row], report: Report) -> None:
    """Measure steps and resets a second of one instance, without the time that the policy takes."""
    environment, episodes, begin = world.make(), [], time.monotonic()
    for number, row in enumerate(rows):
        calls: list[ToolCall] = []
        texts(environment, row, choosers(world, number)["wanderer"], calls)
        episodes.append((row, calls))
        if time.monotonic() - begin > LONG / 4:
            break
    clock, resets, steps, reset_seconds, step_seconds = time.perf_counter, 0, 0, 0.0, 0.0
    while reset_seconds + step_seconds < BUDGET or not steps:
        for row, calls in episodes:
            start = clock()
            environment.reset(**row)
            reset_seconds, resets = reset_seconds + clock() - start, resets + 1
            start = clock()
            for name, arguments in calls:
                getattr(environment, name)(**arguments)
            step_seconds, steps = step_seconds + clock() - start, steps + len(calls)
        if not steps:
            return
    report.resets_per_second = resets / max(reset_seconds, 1e-9)
    report.steps_per_second = steps / max(step_seconds, 1e-9)


def _elsewhere(world: World, seeds: int, count: int, level: str | None) -> dict[str, Any] | str:
    """Digests and memory from another process with another hash seed, or one line that says why it failed."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, world.name, str(seeds), str(count), json.dumps(level)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return f"it failed there: {(done.stderr.strip().splitlines() or ['no word of why'])[-1][:200]}"
    result: dict[str, Any] = loads(lines[-1])
    return result


def _main(name: str, seeds: str, count: str, level: str) -> None:
    world = load(name)
    rows = world.rows(int(seeds), level=loads(level))[: int(count)]
    memory = bytes_an_instance(world, rows)
    print(json.dumps({"bytes": memory, "digests": digests(world, rows)}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
