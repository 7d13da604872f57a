"""`wm env check NAME`: does a world keep the protocol, is it deterministic, and how fast is it?"""

import argparse
from typing import Any

from wm_plugin.cli.env.support import NAME, find
from wm_plugin.errors import UserError

MARKS = {"ok": "ok", "note": "--", "fail": "FAILS"}


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "check",
        help="does a world keep the protocol, is it deterministic, and how fast is it?",
        description="Plays rows with the world's wanderer and its expert: with one instance, new ones, and in another process.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help=NAME)
    parser.add_argument("--all", action="store_true", help="every world of ours that can run here")
    parser.add_argument("--level", metavar="NAME", help="a level of the world (default: the first)")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="rows (default: 20)")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`checked`: a report for each environment; `skipped`: what is missing for each of the others; `ok`: nothing fails."""
    from wm_plugin.worlds import SPECS
    from wm_plugin.worlds.check import check
    from wm_plugin.worlds.worlds import load

    if args.all is (args.name is not None):
        raise UserError("name one world, or write --all")
    if args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; write a number >= 1")
    if args.all and args.level:
        raise UserError("--level is of one world: name it")
    skipped: dict[str, list[str]] = {}
    if args.all:
        missing = {name: spec.needs.missing() for name, spec in SPECS.items()}
        skipped = {name: what for name, what in missing.items() if what}
        worlds = [load(name) for name in SPECS if name not in skipped]
    else:
        worlds = [find(args.name)]
    reports = [check(world, seeds=args.seeds, level=args.level).as_dict() for world in worlds]
    return {"checked": reports, "skipped": skipped, "ok": all(report["ok"] for report in reports)}


def show(result: dict[str, Any]) -> None:
    for report in result["checked"]:
        level = f" ({report['level']})" if report["level"] else ""
        print(f"{report['environment']}{level}: {'ok' if report['ok'] else 'FAILS'}")
        for finding in report["findings"]:
            print(f"  {MARKS[finding['state']]:<5} {finding['name']}: {finding['detail']}")
        memory = report["bytes_an_instance"]
        size = "unknown memory" if memory is None else f"{memory / 1024:,.1f} KB"
        speeds = f"{report['steps_per_second']:,.0f} steps/s, {report['resets_per_second']:,.0f} resets/s"
        print(f"        {speeds}, {size} an instance")
    for name, missing in result["skipped"].items():
        print(f"{name}: skipped, it needs {' and '.join(missing)}")
