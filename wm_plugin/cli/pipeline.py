"""`wm pipeline`: runs a file of steps over commands; those alone that are not done."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from wm_plugin.data.outputs import check_folder
from wm_plugin.errors import UserError, nearest

_DESCRIPTION = """\
Runs the steps of a pipeline: data, training, evaluation, report, for each arm and seed. NAME is one of those that come with
this package, or a YAML file of your own. A step runs if its commands, the content of what it needs, or what it made are not as
they were. After an interrupt or a failure the same command goes on. Needs the extra pipelines.
"""
_EPILOG = """\
examples:
  wm pipeline                                    the pipelines that there are
  wm pipeline rwml_rl_tiny --list                its settings and steps
  wm pipeline rwml_rl_tiny --dry-run             what would run, and why
  wm pipeline rwml_rl_tiny --set seeds=0,1 --set steps=5 --out runs/mine
  wm pipeline rwml_rl_tiny --only train          one step for all its arms and seeds, with what it needs
  wm pipeline mine.yaml --jobs 4 --launcher "ray job submit --"

docs/pipelines.md says how a file is written.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "pipeline",
        help="run a pipeline: data, training, evaluation, report, over arms and seeds",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a pipeline of this package, or a file X.yaml")
    add("--out", metavar="DIR", help="the folder of all that is made (default: the file's own, below runs/)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the pipeline (repeatable)")
    add("--only", action="append", default=[], metavar="STEP", help="this step and what it needs (repeatable)")
    add("--list", action="store_true", help="print the settings and the steps, and run nothing")
    add("--dry-run", action="store_true", help="print what would run, and why, and run nothing")
    add("-n", "--jobs", type=int, default=1, metavar="N", help="steps that run at a time (default: 1)")
    add(
        "--launcher",
        default="",
        metavar="WORDS",
        help='words before every command, for other machines with the same files: "ray job submit --"',
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run, or say what would. As JSON: `pipeline`, `out`, `steps` with the state of each, and `ok`."""
    from wm_plugin.lab.pipelines import expand, read
    from wm_plugin.lab.pipelines.engine import check_inputs, chosen, plan
    from wm_plugin.lab.pipelines.records import Records
    from wm_plugin.runtime.secrets import hold_environment

    if args.jobs < 1:
        raise UserError(f"--jobs is {args.jobs}; write a number >= 1")
    if args.name is None:
        return {"pipelines": [{"name": path.stem, "about": read(path).about} for path in shipped().values()]}
    hold_environment()
    pipeline = read(_path(args.name), args.set)
    steps = chosen(expand(pipeline, args.out), args.only)
    work = Path(args.out or _work(pipeline))
    check_folder(work)
    if not steps:
        raise pipeline.error("has no steps with these settings; `when` leaves all out")
    result: dict[str, Any] = {"pipeline": str(pipeline.path), "about": pipeline.about, "out": str(work)}
    if args.list:
        settings = {name: list(one) if isinstance(one, tuple) else one for name, one in pipeline.settings.items()}
        return result | {"settings": settings, "steps": [_listed(step) for step in steps]}
    check_inputs(steps)
    records = Records(work, pipeline.path.stem)
    if args.dry_run:
        found = [(step, status) for step, status in plan(steps, records)]
        return result | {
            "steps": [
                _listed(step) | {"state": "done" if status.done else "would run", "why": status.why}
                for step, status in found
            ]
        }
    return result | _run(args, steps, records)


def _run(args: argparse.Namespace, steps: Any, records: Any) -> dict[str, Any]:
    from wm_plugin.lab.pipelines import engine
    from wm_plugin.runtime.command import say

    try:
        launcher = tuple(shlex.split(args.launcher))
    except ValueError as error:
        raise UserError(f"--launcher: cannot be split into words ({error})") from None
    running = engine.Run(records, launcher, args.jobs, lambda line: say(f"wm pipeline: {line}"))
    try:
        ok = engine.run(steps, running)
    except KeyboardInterrupt:
        say("wm pipeline: interrupted; the same command goes on")
        raise
    outcomes = list(running.outcomes.values())
    failed = [one.step.name for one in outcomes if one.state == "failed"]
    if failed:
        waits = sum(one.state == "waits" for one in outcomes)
        after = f", and {waits} steps wait for that" if waits else ""
        say(f"wm pipeline: {', '.join(failed[:5])} failed{after}; the same command goes on")
    shown = []
    for step in steps:
        if step.show and ok and records.log(step, "out").exists():
            shown.append(records.log(step, "out").read_text(errors="replace"))
    return {
        "steps": [
            {"name": one.step.name, "state": one.state, "why": one.why, "seconds": round(one.seconds, 1)}
            for one in outcomes
        ],
        "shown": shown,
        "ok": ok,
    }


def show(result: dict[str, Any]) -> None:
    """Print what pipelines there are, the steps, or what the last ones printed."""
    if "pipelines" in result:
        for one in result["pipelines"]:
            print(f"{one['name']:<24} {one['about']}")
        return
    if "shown" in result:
        for text in result["shown"]:
            print(_whole(text), end="")
        print(_counts(result))
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


def shipped() -> dict[str, Path]:
    """The pipelines of this package, by name."""
    found = {}
    for path in sorted(_recipes().glob("*.yaml")):
        if "\nsteps:" in path.read_text(encoding="utf-8"):  # others are settings of scripts
            found[path.stem] = path
    return found


def _recipes() -> Path:
    """The folder of the pipelines, in a checkout or where a wheel puts it."""
    package = Path(__file__).resolve().parents[1]
    beside = package.parent / "recipes" / "pipelines"
    return (
        beside
        if (package.parent / "pyproject.toml").exists() and beside.is_dir()
        else package / "recipes" / "pipelines"
    )


def _path(name: str) -> Path:
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    there = shipped()
    if name not in there:
        raise UserError(
            f"there is no pipeline {name!r} (the name of a file of yours ends in .yaml){nearest(name, there)}"
        )
    return there[name]


def _work(pipeline: Any) -> str:
    from wm_plugin.lab.pipelines.expand import work_of

    return work_of(pipeline)


def _listed(step: Any) -> dict[str, Any]:
    from wm_plugin.runtime.secrets import redact

    return {
        "name": step.name,
        "run": [redact(shlex.join(command)) for command in step.commands],
        "needs": list(step.needs),
        "makes": list(step.makes),
        "after": list(step.after),
    }


def _counts(result: dict[str, Any]) -> str:
    states = [step["state"] for step in result["steps"]]
    parts = [f"{states.count(state)} {word}" for state, word in (("ran", "ran"), ("done", "done before"))]
    parts += [
        f"{states.count(state)} {word}"
        for state, word in (("failed", "failed"), ("waits", "not begun"))
        if state in states
    ]
    return f"steps: {', '.join(parts)}; results in {result['out']}"


def _whole(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
