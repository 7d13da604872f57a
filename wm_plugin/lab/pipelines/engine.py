"""Run a pipeline's unfinished steps in order, several at a time."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError, nearest
from wm_plugin.lab.pipelines.expand import Step
from wm_plugin.lab.pipelines.records import Records, Status

_PATIENCE = 20.0  # seconds that commands have to end by themselves after an interrupt
_TAIL = 15  # lines of a failed command's output that are shown


@dataclass
class Outcome:
    """How a step ended. `state` is done (in an earlier run), ran, failed, or waits (for a step that failed)."""

    step: Step
    state: str = "waits"
    why: str = ""
    seconds: float = 0.0


@dataclass
class Run:
    """How to run the steps, and how they ended."""

    records: Records
    launcher: tuple[str, ...] = ()  # words before each command, such as `ray job submit --`
    jobs: int = 1  # steps at a time
    say: Callable[[str], None] = print
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    lock: int = -1
    processes: list[Any] = field(default_factory=list)
    stopped: bool = False


def check_inputs(steps: Sequence[Step]) -> None:
    """Raise a UserError if a step needs a file that is not there and that no step makes."""
    for step in steps:
        for need in step.needs:
            is_made = any(
                f"{need}/".startswith(f"{path}/") or f"{path}/".startswith(f"{need}/")
                for other in steps
                for path in other.makes
            )
            if not is_made and not os.path.exists(need):
                raise UserError(f"step {step.name} needs {need}, which is not there, and which no step makes")


def chosen(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """Return the named steps and all that they need; without names, every step."""
    wanted = {step.name for step in steps if not only or {step.name, step.family} & set(only)}
    names = {name for step in steps for name in (step.name, step.family)}
    for name in only:
        if name not in names:
            raise UserError(f"--only {name}: there is no such step{nearest(name, names)}")
    for step in reversed(steps):  # each after those that it needs
        if step.name in wanted:
            wanted |= set(step.after)
    return [step for step in steps if step.name in wanted]


def plan(steps: Sequence[Step], records: Records) -> list[tuple[Step, Status]]:
    """Return each step's status, in order. A done step stays done if the outputs of those before it do not change."""
    found: dict[str, Status] = {}
    for step in steps:
        status = records.status(step)
        before = next((name for name in step.after if name in found and not found[name].done), None)
        if status.done and before is not None:
            status = Status(False, why=f"if {before} makes something other than before")
        found[step.name] = status
    return [(step, found[step.name]) for step in steps]


def run(steps: Sequence[Step], run: Run) -> bool:
    """Run what is not done, `run.jobs` steps at a time; return whether all are done now. `run.outcomes` has each step's end.

    If a step fails, those that do not need it still run.

    Raises:
        UserError: another run uses the folder, or something else is at the path of an output.
    """
    run.outcomes = {step.name: Outcome(step) for step in steps}
    run.records.make()
    with run.records.locked() as run.lock, ThreadPoolExecutor(run.jobs) as threads:
        plan(steps, run.records)  # raises if something is in the way, before hours of work
        waiting, running = list(steps), dict[Future[bool], Step]()
        finished: set[str] = set()
        try:
            while True:
                ready = [step for step in waiting if finished.issuperset(set(step.after) & set(run.outcomes))]
                for step in ready[: run.jobs - len(running)]:  # in their order
                    waiting.remove(step)
                    running[threads.submit(_run_step, step, run)] = step
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    step = running.pop(future)
                    if future.result():
                        finished.add(step.name)
        except BaseException:
            run.stopped = True
            _stop(run.processes)
            raise
        finally:
            run.records.digests.save()
    return all(outcome.state in ("done", "ran") for outcome in run.outcomes.values())


def _run_step(step: Step, run: Run) -> bool:
    """Run a step that is not done; return whether it is done now."""
    outcome, began = run.outcomes[step.name], time.monotonic()
    try:
        status = run.records.status(step)
        outcome.why = status.why
        if status.done:
            outcome.state = "done"
            return True
        _run_commands(step, status, run)
    except (OSError, ValueError) as error:  # ValueError: also a word with a NUL
        outcome.state, outcome.why = "failed", str(error)
        if not run.stopped:
            run.say(f"{step.name}: {error}")
        return False
    outcome.state, outcome.seconds = "ran", time.monotonic() - began
    run.say(f"{step.name}: done in {outcome.seconds:,.0f} s")
    return True


def _run_commands(step: Step, status: Status, run: Run) -> None:
    """Run a step's commands; raise UserError if one fails, or if an output is missing at the end."""
    records = run.records
    record, log = records.wanted(step), records.log(step)
    missing = next((need for need in step.needs if record.needs[step.portable(need)] is None), None)
    if missing is not None:
        raise UserError(f"needs {missing}, which is not there")
    old = records.read(step)
    record = replace(record, paths=sorted({*step.makes, *(() if old is None else old.paths)}))
    if status.goes_on and old is not None:
        record = replace(record, ended=old.ended)
    else:
        for path in [path for made in step.makes for path in (made, *_work_folders(made))]:
            if os.path.lexists(path):
                run.say(f"{step.name}: {path} is moved to {records.aside(path)}")
    run.say(f"{step.name}: {'goes on' if status.goes_on else 'begins'} ({status.why}); {log}")
    records.write(step, record)
    for path in step.makes:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    for number, command in enumerate(step.commands[record.ended :], record.ended + 1):
        code = _call(step, command, run)
        if code:
            for line in log.read_bytes()[-8192:].decode(errors="replace").splitlines()[-_TAIL:]:
                run.say(f"  {line}")
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            raise UserError(f"`{shlex.join(command)[:200]}` {ended}; its output is in {log}")
        record = replace(record, ended=number)
        records.write(step, record)
    made = records.made(step)
    absent = next((path for path, digest in made.items() if digest is None), None)
    if absent is not None:
        records.write(step, replace(record, ended=0))
        raise UserError(f"its commands ended, but did not make {absent}; their output is in {log}")
    records.write(step, replace(record, made=made))
    records.digests.save()


def _work_folders(path: str) -> list[str]:
    """Return the folder in which our data commands keep an unfinished X.jsonl: X.work."""
    return [str(Path(path).with_suffix(".work"))] if Path(path).suffix in (".jsonl", ".parquet") else []


def _call(step: Step, command: Sequence[str], run: Run) -> int:
    """Run a command; return its exit code."""
    if run.stopped:
        raise UserError("was interrupted")
    programs = str(Path(sys.executable).parent)  # this environment's programs come first
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    words = ["python", "-m", "wm_plugin", *command[1:]] if command[0] == "wm" else list(command)
    if os.access(os.path.join(programs, words[0]), os.X_OK):
        words[0] = sys.executable if words[0] == "python" else os.path.join(programs, words[0])
    if run.launcher:  # processes elsewhere do not have our variables
        variables = ["env", *(f"{name}={text}" for name, text in step.env.items())] if step.env else []
        words = [*run.launcher, *variables, *words]
    log = run.records.log(step)
    out = run.records.log(step, "out") if step.show else log
    with open(log, "ab") as errors, open(out, "wb" if step.show else "ab") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **step.env, "PATH": path},
            pass_fds=[run.lock],
        )
    run.processes.append(process)
    return process.wait()


def _stop(processes: Sequence[Any]) -> None:
    """Wait for the commands, which also get a terminal's interrupt; then terminate and at last kill them."""
    until = time.monotonic() + _PATIENCE
    for end in (None, "terminate", "kill"):
        for process in processes:
            if end and process.poll() is None:
                getattr(process, end)()
                until = time.monotonic() + _PATIENCE
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
