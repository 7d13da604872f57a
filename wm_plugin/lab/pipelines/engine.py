"""Runs a pipeline's steps by doit: in their order, several at a time, those alone that are not done."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wm_plugin.errors import MissingExtraError, UserError, nearest
from wm_plugin.lab.pipelines.expand import Step, words_of
from wm_plugin.lab.pipelines.records import Records, Status

_PATIENCE = 20.0  # seconds that commands have to end by themselves after an interrupt
_TAIL = 15  # lines of a failed command's output that are shown
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What became of a step: done (before), ran, failed, or waits (for one that failed)."""

    step: Step
    state: str = "waits"
    why: str = ""
    seconds: float = 0.0


@dataclass
class Run:
    """How steps are run.

    Attributes:
        launcher: words before each command, such as `ray job submit --`.
        jobs: steps at a time.
    """

    records: Records
    launcher: tuple[str, ...] = ()
    jobs: int = 1
    say: Say = print
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    lock: int = -1
    _processes: set[Any] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)


def check_inputs(steps: Sequence[Step]) -> None:
    """Refuse to begin without what no step makes.

    Raises:
        UserError: a need is not there.
    """
    made = [path for step in steps for path in step.makes]
    for step in steps:
        for need in step.needs:
            ours = any(
                (need + os.sep).startswith(path + os.sep) or (path + os.sep).startswith(need + os.sep) for path in made
            )
            if not ours and not os.path.exists(need):
                raise UserError(f"step {step.name} needs {need}, which is not there, and which no step makes")


def chosen(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps of these names, with all that they need; all steps without names.

    Raises:
        UserError: there is no such step.
    """
    if not only:
        return list(steps)
    by_name = {step.name: step for step in steps}
    families = {step.family for step in steps}
    wanted: set[str] = set()
    for name in only:
        found = [step.name for step in steps if name in (step.name, step.family)]
        if not found:
            raise UserError(f"--only {name}: there is no such step{nearest(name, by_name.keys() | families)}")
        wanted |= set(found)
    waiting = list(wanted)
    while waiting:
        for name in by_name[waiting.pop()].after:
            if name not in wanted:
                wanted.add(name)
                waiting.append(name)
    return [step for step in steps if step.name in wanted]


def plan(steps: Sequence[Step], records: Records) -> list[tuple[Step, Status]]:
    """What would run, in order. What comes after a step that would run may turn out to be done, if that makes the same again.

    Raises:
        UserError: as from `Records.status`.
    """
    found: dict[str, Status] = {}
    for step in steps:
        status = records.status(step)
        before = next((name for name in step.after if name in found and not found[name].done), None)
        if status.done and before is not None:
            status = Status(False, why=f"if {before} makes something else than before")
        found[step.name] = status
    return [(step, found[step.name]) for step in steps]


def run(steps: Sequence[Step], run: Run) -> bool:
    """Run what is not done. Returns whether all steps are done now; `run.outcomes` has each.

    Raises:
        UserError: another run is at it, or something is in the place of an output.
        MissingExtraError: doit is not installed.
    """
    try:
        from doit.control import TaskControl
        from doit.dependency import Dependency
        from doit.exceptions import TaskFailed
        from doit.runner import MThreadRunner, Runner
        from doit.task import Stream, Task
    except ImportError:
        raise MissingExtraError("wm lab pipeline", "doit", "pipelines") from None
    run.outcomes = {step.name: Outcome(step) for step in steps}

    def task(step: Step) -> Any:
        def action() -> Any:
            try:
                done = _ran(step, run)
            except (OSError, ValueError) as error:  # the second also of a word with a NUL
                done = _failed(run.outcomes[step.name], run, str(error))
            return None if done else TaskFailed(step.name)

        return Task(
            step.name,
            [action],
            task_dep=[name for name in step.after if name in run.outcomes],
            uptodate=[lambda: _is_done(step, run)],
            io={"capture": False},
            verbosity=2,
        )

    run.records.make()
    with ExitStack() as stack:
        run.lock = stack.enter_context(run.records.locked())
        stack.callback(run.records.digests.save)
        for step in steps:  # before hours of work
            run.records.check(step)
        control = TaskControl([task(step) for step in steps])
        control.process(None)
        # what other steps may still do is done where one fails
        arguments = (Dependency(_Nothing, "", module_name=None), _Quiet(), True, False, Stream(2))
        runner = Runner(*arguments) if run.jobs == 1 else MThreadRunner(*arguments, run.jobs)
        try:
            runner.run_all(control.task_dispatcher())
        except BaseException:
            _end(run)
            raise
    return all(outcome.state in ("done", "ran") for outcome in run.outcomes.values())


def _is_done(step: Step, run: Run) -> bool:
    try:
        status = run.records.status(step)
    except (OSError, UserError):  # which `_ran` meets again, and says
        return False
    run.outcomes[step.name].why = status.why
    if status.done:
        run.outcomes[step.name].state = "done"
    return status.done


def _ran(step: Step, run: Run) -> bool:
    """Run a step. Whether it made what it is to make."""
    outcome, records, began = run.outcomes[step.name], run.records, time.monotonic()
    status, record = records.status(step), records.wanted(step)
    missing = next((need for need in step.needs if record.needs[step.names.get(need, need)] is None), None)
    if missing is not None:
        return _failed(outcome, run, f"needs {missing}, which is not there")
    old = records.read(step)
    record = replace(record, paths=sorted({*step.makes, *(() if old is None else (*old.paths, *(old.made or ())))}))
    if status.goes_on and old is not None:
        record = replace(record, ended=old.ended)
    else:
        for path in [path for made in step.makes for path in (made, *_work_of(made))]:
            if os.path.lexists(path):
                run.say(f"{step.name}: {path} is moved to {records.aside(path)}")
    log = records.log(step)
    run.say(f"{step.name}: {'goes on' if status.goes_on else 'begins'} ({status.why}); {log}")
    records.write(step, record)
    for path in step.makes:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    for number, command in enumerate(step.commands):
        if number < record.ended:
            continue
        code = _call(step, command, run, log)
        if code:
            for line in _tail(log):
                run.say(f"  {line}")
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            return _failed(outcome, run, f"`{words_of([command])[:200]}` {ended}; its output is in {log}")
        record = replace(record, ended=number + 1)
        records.write(step, record)
    made = records.made(step)
    absent = next((path for path, digest in made.items() if digest is None), None)
    if absent is not None:
        records.write(step, replace(record, ended=0))
        return _failed(outcome, run, f"its commands ended, and did not make {absent}; their output is in {log}")
    records.write(step, replace(record, made=made))
    records.digests.save()
    outcome.state, outcome.seconds = "ran", time.monotonic() - began
    run.say(f"{step.name}: done in {outcome.seconds:,.0f} s")
    return True


def _work_of(path: str) -> list[str]:
    """Where our data commands keep what they have done of X.jsonl, to go on from: X.work, which is of other settings then."""
    return [str(Path(path).with_suffix(".work"))] if Path(path).suffix in (".jsonl", ".parquet") else []


def _failed(outcome: Outcome, run: Run, why: str) -> bool:
    outcome.state, outcome.why = "failed", why
    run.say(f"{outcome.step.name}: {why}")
    return False


def _call(step: Step, command: Sequence[str], run: Run, log: Path) -> int:
    """Run a command. Returns its exit code."""
    programs = str(Path(sys.executable).parent)
    variables = {**os.environ, **step.env, "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])}
    words = _program(command, programs)
    if run.launcher:  # whose processes elsewhere do not have our variables
        words = [
            *run.launcher,
            *(["env", *(f"{name}={text}" for name, text in step.env.items())] if step.env else []),
            *words,
        ]
    out = run.records.shown(step) if step.show else log
    try:
        with open(log, "ab") as errors, open(out, "wb" if step.show else "ab") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=variables, pass_fds=[run.lock]
            )
    except OSError as error:
        with open(log, "a") as errors_text:
            errors_text.write(f"{words[0]}: {error.strerror}\n")
        return 127
    with run._guard:
        run._processes.add(process)
    code = process.wait()
    with run._guard:
        run._processes.discard(process)
    return code


def _program(command: Sequence[str], programs: str) -> list[str]:
    """A command whose program is that of this interpreter, where there is one of that name."""
    first, *rest = command
    if first == "wm":
        return [sys.executable, "-m", "wm_plugin.cli.main", *rest]
    if first == "python":
        return [sys.executable, *rest]
    beside = os.path.join(programs, first)
    return [beside if os.sep not in first and os.access(beside, os.X_OK) else first, *rest]


def _end(run: Run) -> None:
    """Wait for the commands, which a terminal has told of an interrupt, too; then end them."""
    with run._guard:
        processes = list(run._processes)
    until = time.monotonic() + _PATIENCE
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        process.kill()


def _tail(log: Path) -> list[str]:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            return file.read().decode(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []


class _Nothing:
    """doit's own store, which nothing is kept in: it writes when all is over, and a killed run would lose it."""

    def __init__(self, name: str, **_options: Any) -> None:
        self.name = name

    def get(self, _task: str, _key: str) -> None:
        return None

    def set(self, _task: str, _key: str, _value: Any) -> None: ...

    def in_(self, _task: str) -> bool:
        return False

    def remove(self, _task: str) -> None: ...

    def remove_all(self) -> None: ...

    def dump(self) -> None: ...


class _Quiet:
    """doit's reporter, which says nothing but what went wrong in us."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None

    def add_failure(self, _task: Any, fail: Any) -> None:
        if getattr(fail, "traceback", ""):
            print(fail.get_msg(), file=sys.stderr)

    def runtime_error(self, message: str) -> None:
        print(message, file=sys.stderr)
