"""`wm data STEP`: rollouts of any format to trajectories, and trajectories to what is trained on. One module a step."""

import argparse
from importlib import import_module
from typing import Any

from wm_plugin.errors import UserError

STEPS = ("convert", "inspect", "filter", "expand", "easy", "best", "prompts", "build")  # in the order of use


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data",
        help=f"make training data of rollouts: {', '.join(STEPS[:-1])} or {STEPS[-1]}",
        description="Rollouts of any format to trajectories, and trajectories to training data.",
    )
    parser.set_defaults(run=_nothing)
    steps = parser.add_subparsers(dest="step", metavar="STEP", title="steps")
    for name in STEPS:
        step = import_module(f"wm_plugin.cli.data.{name}").add_parser(steps)
        step.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object, last")
    return parser


def _nothing(_args: argparse.Namespace) -> dict[str, Any]:
    raise UserError(f"name a step: wm data {', '.join(STEPS[:-1])} or {STEPS[-1]}; see wm data --help")
