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
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from wm_plugin.errors import UserError
from wm_plugin.hosting.world import is_over, tool_methods
from wm_plugin.untrusted import loads
from wm_plugin.worlds.kit import protocol
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall
from wm_plugin.worlds.ready import Use, uses
from wm_plugin.worlds.worlds import World, load

MAX_TURNS, WANDERER_TURNS = 200, 30  # of any episode and of a wanderer's; environments end on their own
LONG = 20.0  # seconds after which no more rows are played
BUDGET = 0.15  # seconds over which a speed is measured
HOSTILE: tuple[Any, ...] = (
    *("", "\0", "\ud800", "x" * 100_000, "'; DROP TABLE x; --", "$(reboot)", "</tool_response><|im_end|>"),
    *("<action><action>", "{}{0}%s", None, True, float("nan"), 10**30, ["U"], {"U": 1}),
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
    """The findings, and what each use of the world still needs.

    Speeds are those of this machine; `bytes_an_instance` is the memory of an instance in an episode.
    """

    environment: str
    level: str | None
    findings: list[Finding] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    expert_success: float | None = None
    steps_per_second: float = 0.0
    resets_per_second: float = 0.0
    bytes_an_instance: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing fails."""
        return all(finding.state != "fail" for finding in self.findings)

    def add(self, name: str, problem: str, good: str = "") -> None:
        """Add a finding that fails with `problem`, or holds with the detail `good`."""
        self.findings.append(Finding(name, "fail" if problem else "ok", problem or good))

    def note(self, name: str, detail: str) -> None:
        self.findings.append(Finding(name, "note", detail))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def check(world: World, *, seeds: int = 20, level: str | None = None, quick: bool = False) -> Report:
    """Play `seeds` rows with the wanderer and with the expert, and report what holds and what fails.

    If the rows or the class fail, nothing is played.

    Args:
        quick: starts no other process and measures no speed.
    """
    if seeds < 1:
        raise UserError(f"seeds is {seeds}; write a number >= 1")
    report = Report(world.name, level or next(iter(world.levels), None))
    try:
        rows = world.some_rows(seeds, level=level)
        report.add("rows", _rows_problem(world, rows, level), f"{len(rows)}; held-out ones are others")
        tools = ", ".join(tool_methods(world.make()))
        report.add("class", _class_problem(world, rows[0]), f"tools: {tools}")
        if report.ok:
            _attributes(world, rows[0], report)
            here = _episodes(world, rows, report)
            if not quick:
                _compare(world, len(rows), here, report, level)
            good = f"{len(HOSTILE)} hostile values a tool are answered in words"
            report.add("any input", _robustness_problem(world, rows[0]), good)
            if not quick:
                _speed(world, rows, report)
        report.uses = uses(world, [finding.name for finding in report.findings if finding.state == "fail"])
    except UserError:
        raise
    except Exception as error:
        report.add("runs", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return report


def choosers(world: World, number: int) -> dict[str, Chooser]:
    """Make a wanderer, which stops after `WANDERER_TURNS` turns, and an expert, if there is one, for the row of this number."""
    wanderer, turns = world.wanderer(random.Random(number)), iter(range(WANDERER_TURNS))
    policies: dict[str, Chooser] = {
        "wanderer": lambda environment: None if next(turns, None) is None else wanderer(environment)
    }
    expert = world.expert()
    return policies if expert is None else policies | {"expert": expert}


def texts(environment: Any, row: Row, choose: Chooser, calls: list[ToolCall] | None = None) -> list[str]:
    """Play an episode; return all observations in order, and its outcome as JSON last. Calls are appended to `calls`."""
    calls = [] if calls is None else calls
    seen = [str(environment.reset(**row))]
    while not is_over(environment) and len(seen) <= MAX_TURNS and (call := choose(environment)) is not None:
        calls.append(call)
        try:
            seen.append(str(getattr(environment, call[0])(**call[1])))
        except ValueError as error:
            seen.append(f"ValueError: {error}")
    outcome = {name: getattr(environment, name, None) for name in ("success", "turns", "metrics")}
    return [*seen, json.dumps([protocol.reward_of(environment), outcome], sort_keys=True, default=str)]


def digests(world: World, rows: Sequence[Row]) -> list[str]:
    """Hash each row and all texts of its episodes. Each row has a new instance."""
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
    tasks, held_out = (
        {json.dumps({**row, "prompt": None}, sort_keys=True, default=str) for row in some}
        for some in (rows, world.some_rows(len(rows), held_out=True, level=level))
    )
    return f"{len(tasks & held_out)} held-out rows are among the others" if tasks & held_out else ""


def _class_problem(world: World, row: Row) -> str:
    environment = world.make()
    tools = tool_methods(environment)
    if not tools:
        return "no tool: every public method but reset, get_reward and world_context is one"
    for name in tools:
        try:
            protocol.tool_schema(getattr(world.environment, name))
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
    parameters = inspect.signature(world.environment.reset).parameters.values()  # type: ignore[attr-defined]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    is_remote = getattr(environment, "is_remote", False)  # its server may refuse a column that it does not know
    first = environment.reset(**row, **({"some_other_column": 1} if takes_any and not is_remote else {}))
    protocol.world_context_of(environment)
    reward = environment.get_reward() if hasattr(environment, "get_reward") else 0
    for problem, holds in (
        ("reset returns no text", isinstance(first, str)),
        ("over is not False after a reset", getattr(environment, "over", False) is False),
        ("success is not False after a reset", getattr(environment, "success", False) is False),
        ("turns is not 0 after a reset", getattr(environment, "turns", 0) == 0),
        ("get_reward() gives no number after a reset", isinstance(reward, float | int)),
        ("reset takes no other columns, and hosts pass all: write **_ at its end", takes_any),
    ):
        if not holds:
            return problem
    return ""


def _attributes(world: World, row: Row, report: Report) -> None:
    """Check who is observed, by tool where they differ, and the figures."""
    environment = world.make()
    environment.reset(**row)
    if hasattr(world.environment, "observer"):
        kinds = dict.fromkeys(world.observers.values())
        by_kind = {kind: [tool for tool, its in world.observers.items() if its == kind] for kind in kinds}
        report.add("observer", "", "; ".join(f"{kind} ({', '.join(tools)})" for kind, tools in by_kind.items()))
    else:
        detail = "none declared: all that is observed counts as tools' results, which RWML scores by ROUGE"
        report.note("observer", f'{detail}; write observer = "environment", or {{"ask": "user"}}')
    if (metrics := getattr(environment, "metrics", None)) is None:
        report.note("metrics", "none: effective and invalid shares of actions are not reported")
    else:
        missing = ", ".join(repr(name) for name in ("actions", "effective", "invalid") if name not in metrics)
        report.add("metrics", f"metrics has no {missing}" if missing else "", ", ".join(metrics))
    if not hasattr(environment, "over"):
        report.note("end", "no over: an episode goes on until the host ends it")
    if not hasattr(environment, "get_reward"):
        report.note(
            "reward", "no get_reward: training needs a reward of the trainer's (TRL: reward_funcs; verl: wm.reward)"
        )
    if unsaid := [name for name in ("success", "turns") if not hasattr(environment, name)]:
        report.note("figures", f"no {' and no '.join(unsaid)}: not reported")


def _episodes(world: World, rows: Sequence[Row], report: Report) -> list[str]:
    """Check determinism, the end of an episode, rewards, and the expert's success; return the digests of new instances."""
    used, here, problems = world.make(), [], dict.fromkeys(("reset", "end", "reward"), "")
    wins, experts, start = 0, 0, time.monotonic()
    for number, row in enumerate(rows):
        if time.monotonic() - start > LONG:
            report.note("slow", f"only {number} of {len(rows)} rows were played")
            break
        episodes = []
        for name, choose in choosers(world, number).items():
            calls: list[ToolCall] = []
            episodes.append(texts(used, row, choose, calls))
            reward = protocol.reward_of(used)
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
    report.add("reset", problems["reset"], "leaves nothing of the last episode")
    if hasattr(used, "over"):
        report.add("end", problems["end"], "a call after it raises ValueError")
    if hasattr(used, "get_reward"):
        report.add("reward", problems["reward"], "between 0 and 1")
    if not experts:
        report.note("expert", "none beside the class")
    elif not hasattr(used, "success"):
        report.note("expert", "it plays, and the class does not say whether it wins")
    else:
        report.expert_success = wins / experts
        report.add("expert", "" if wins else f"wins 0 of {experts}", f"wins {wins} of {experts}")
    return fresh


def _end_problem(environment: Any, call: ToolCall) -> str:
    try:
        getattr(environment, call[0])(**call[1])
    except ValueError:
        return ""
    except Exception as error:
        return f"a call after it raises {type(error).__name__}, not ValueError"
    return "a call after it is answered; raise ValueError"


def _robustness_problem(world: World, row: Row) -> str:
    environment = world.make()
    environment.reset(**row)
    for name, tool in tool_methods(environment).items():
        schema = protocol.tool_schema(getattr(world.environment, name))
        parameters = schema["function"]["parameters"]["properties"]
        for value in HOSTILE if parameters else ():
            if is_over(environment):
                environment.reset(**row)
            called = f"{name}({repr(value)[:20]})"
            try:
                str(tool(**dict.fromkeys(parameters, value))).encode()
            except UnicodeEncodeError:
                return f"{called} answers with half a surrogate pair, which no tokenizer takes"
            except Exception as error:
                return f"{called} raises {type(error).__name__}; answer in words, and count it as invalid"
    return ""


def _speed(world: World, rows: Sequence[Row], report: Report) -> None:
    """Measure steps and resets a second of one instance, without the time that the policy takes."""
    environment, calls = world.make(), list[ToolCall]()
    texts(environment, rows[0], choosers(world, 0)["wanderer"], calls)

    def seconds(made: Sequence[ToolCall]) -> float:
        """The time of a reset and these calls."""
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < BUDGET or not count:
            environment.reset(**rows[0])
            for name, arguments in made:
                getattr(environment, name)(**arguments)
            count += 1
        return spent / count

    resets = seconds([])
    report.resets_per_second = 1 / resets
    if calls:
        report.steps_per_second = len(calls) / max(seconds(calls) - resets, 1e-9)


def bytes_an_instance(world: World, rows: Sequence[Row]) -> int | None:
    """Measure the bytes of an instance in an episode, with the processes that it starts; None on systems without /proc, and where
    episodes are on a server."""
    if getattr(world.environment, "is_remote", False):
        return None

    def started(count: int) -> list[Any]:
        instances = [world.make() for _ in range(count)]
        for number, instance in enumerate(instances):
            instance.reset(**rows[number % len(rows)])
        return instances

    instances = started(1)  # which also loads what all share
    start = time.monotonic()
    instances += started(1)
    count = 1024 if time.monotonic() - start < 0.005 else 4
    before = _resident()
    instances += started(count)
    after = _resident()
    instances.clear()
    return None if before is None or after is None else max(after - before, 0) // count


def _resident() -> int | None:
    """The resident bytes of this process and all that it started; None on systems without /proc."""
    parents, pages = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            process, fields = int(path.parent.name), path.read_text().rpartition(")")[2].split()
            parents[process], pages[process] = int(fields[1]), int(fields[21])
    family = [os.getpid()] if pages else []
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return sum(pages[process] for process in family) * os.sysconf("SC_PAGE_SIZE") if family else None


def _compare(world: World, seeds: int, here: list[str], report: Report, level: str | None) -> None:
    """Play the same in another process with another hash seed, and measure the memory there."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, world.name, str(seeds), str(len(here)), json.dumps(level)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        why = (done.stderr.strip().splitlines() or ["no word of why"])[-1][:200]
        report.add("other process", f"it failed there: {why}")
        return
    there = loads(lines[-1])
    differing = sum(one != other for one, other in zip(here, there["digests"], strict=True))
    problem = f"{differing} of {len(here)} rows show other texts there" if differing else ""
    report.add("other process", problem, "the same texts, byte for byte")
    report.bytes_an_instance = there["bytes"]


def _main(name: str, seeds: str, count: str, level: str) -> None:
    world = load(name)
    rows = world.rows(int(seeds), level=loads(level))[: int(count)]
    print(json.dumps({"bytes": bytes_an_instance(world, rows), "digests": digests(world, rows)}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
