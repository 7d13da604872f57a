"""`wm lab pipeline`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints
from wm_plugin.data.outputs import check_folder
from wm_plugin.errors import UserError
from wm_plugin.lab.pipelines import engine, expand, read
from wm_plugin.lab.pipelines.expand import work_of
from wm_plugin.lab.pipelines.records import Records
from wm_plugin.lab.pipelines.shipped import find, shipped
from wm_plugin.runtime.command import say
from wm_plugin.runtime.secrets import hold_environment, redact

_STATES = {"ran": "ran", "done": "done before", "failed": "failed", "waits": "not begun"}


def show(result: dict[str, Any]) -> None:
    """Print what pipelines there are, the steps, or what the last ones printed."""
    if "pipelines" in result:
        for one in result["pipelines"]:
            print(f"{one['name']:<24} {one['about']}")
        return
    if "shown" in result:
        for text in filter(None, result["shown"]):
            print(text.removesuffix("\n"))
        states = [step["state"] for step in result["steps"]]
        counts = [
            f"{states.count(state)} {word}" for state, word in _STATES.items() if state in {*states, "ran", "done"}
        ]
        print(f"steps: {', '.join(counts)}; results in {result['out']}")
        return
    print(f"{result['about']}\nresults: {result['out']}")
    for name, value in result.get("settings", {}).items():
        print(f"--set {name}={','.join(value) if isinstance(value, list) else value}")
    for step in result["steps"]:
        state = f"  {step['state']}{': ' if step['why'] else ''}{step['why']}" if "state" in step else ""
        print(f"\n{step['name']}{state}")
        if state and step["state"] == "done":
            continue
        for command in step["run"]:
            print(f"    {command}")


@prints(show)
def pipeline(
    name: str | None = None,
    /,
    *,
    out: str | None = None,
    set: list[str] | None = None,
    only: list[str] | None = None,
    list_only: Annotated[bool, Parameter(name="--list")] = False,
    dry_run: bool = False,
    jobs: Annotated[Count, Parameter(name=["--jobs", "-n"])] = 1,
    launcher: str = "",
) -> dict[str, Any]:
    """Run a pipeline: data, training, evaluation, report, for each arm and seed.

    NAME is one of those that come with this package, which `wm lab pipeline` lists, or a YAML file of your own
    (docs/pipelines.md). A step runs if its commands, the content of what it needs, or what it made are not as they were.
    After an interrupt or a failure the same command goes on.

    ```
    wm lab pipeline rwml_rl_tiny --list                its settings and steps
    wm lab pipeline rwml_rl_tiny --dry-run             what would run, and why
    wm lab pipeline rwml_rl_tiny --set seeds=0,1 --set steps=5 --out runs/mine
    wm lab pipeline rwml_rl_tiny --only train          one step for all its arms and seeds, with what it needs
    wm lab pipeline mine.yaml --jobs 4 --launcher "ray job submit --"
    ```

    Args:
        name: A pipeline of this package, or a file X.yaml.
        out: The folder of all that is made (default: the file's own, below runs/).
        set: NAME=VALUE, a setting of the pipeline (repeatable).
        only: This step and what it needs (repeatable).
        list_only: Print the settings and the steps, and run nothing.
        dry_run: Print what would run, and why, and run nothing.
        jobs: Steps that run at a time.
        launcher: Words before every command, for other machines with the same files, such as "ray job submit --".
    """
    if name is None:
        return {"pipelines": [{"name": path.stem, "about": read(path).about} for path in shipped().values()]}
    hold_environment()
    found = read(find(name), set or [])
    steps = engine.chosen(expand(found, out), only or [])
    work = Path(out or work_of(found))
    check_folder(work)
    if not steps:
        raise found.error("has no steps with these settings; `when` leaves all out")
    result: dict[str, Any] = {"pipeline": str(found.path), "about": found.about, "out": str(work)}
    if list_only:
        settings = {key: list(one) if isinstance(one, tuple) else one for key, one in found.settings.items()}
        return result | {"settings": settings, "steps": [_listed(step) for step in steps]}
    engine.check_inputs(steps)
    records = Records(work, found.path.stem)
    if dry_run:
        planned = []
        for step, status in engine.plan(steps, records):
            planned.append(_listed(step) | {"state": "done" if status.done else "would run", "why": status.why})
        return result | {"steps": planned}
    return result | _run(steps, records, jobs, launcher)


def _run(steps: Any, records: Any, jobs: int, launcher: str) -> dict[str, Any]:
    try:
        words = tuple(shlex.split(launcher))
    except ValueError as error:
        raise UserError(f"--launcher: cannot be split into words ({error})") from None
    running = engine.Run(records, words, jobs, lambda line: say(f"wm lab pipeline: {line}"))
    try:
        ok = engine.run(steps, running)
    except KeyboardInterrupt:
        say("wm lab pipeline: interrupted; the same command goes on")
        raise
    outcomes = list(running.outcomes.values())
    failed = [one.step.name for one in outcomes if one.state == "failed"]
    if failed:
        waits = sum(one.state == "waits" for one in outcomes)
        after = f", and {waits} steps wait for that" if waits else ""
        say(f"wm lab pipeline: {', '.join(failed[:5])} failed{after}; the same command goes on")
    logs = [records.log(step, "out") for step in steps if step.show and ok]
    rows = [
        {"name": one.step.name, "state": one.state, "why": one.why, "seconds": round(one.seconds, 1)}
        for one in outcomes
    ]
    return {"steps": rows, "shown": [log.read_text(errors="replace") for log in logs if log.exists()], "ok": ok}


def _listed(step: Any) -> dict[str, Any]:
    return {
        "name": step.name,
        "run": [redact(shlex.join(command)) for command in step.commands],
        "needs": list(step.needs),
        "makes": list(step.makes),
        "after": list(step.after),
    }
