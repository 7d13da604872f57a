"""Verbs with steps, such as `wm data STEP`. A step is a module with `add_parser(subparsers)`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from wm_plugin.errors import UserError


def search_here() -> None:
    """Let a dotted path name a module in the working directory, where a console script does not look."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def add_steps(parser: argparse.ArgumentParser, verb: str, names: Sequence[str]) -> argparse.ArgumentParser:
    """Add a verb's steps, which are modules of `wm_plugin.cli.<verb>`, and give each of them `--json`."""

    def nothing(_args: argparse.Namespace) -> dict[str, Any]:
        raise UserError(f"name a step: wm {verb} {', '.join(names)}; see wm {verb} --help")

    parser.set_defaults(run=nothing, step_names=names)
    steps = parser.add_subparsers(dest="step", metavar="STEP", title="steps")
    for name in names:
        step = import_module(f"wm_plugin.cli.{verb}.{name.replace('-', '_')}").add_parser(steps)
        step.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object, last")
        step.set_defaults(step_parser=step)  # which knows its flags
    return parser
