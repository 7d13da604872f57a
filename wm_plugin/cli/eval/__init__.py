"""`wm eval WHAT`: how good a world model is, and what its rewards are worth. One module a kind."""

import argparse
from importlib import import_module
from typing import Any

from wm_plugin.errors import UserError

KINDS = ("audit",)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "eval",
        help=f"evaluate: {', '.join(KINDS)}",
        description="How good a world model is, and what its rewards are worth.",
    )
    parser.set_defaults(run=_nothing)
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", title="what")
    for name in KINDS:
        kind = import_module(f"wm_plugin.cli.eval.{name}").add_parser(kinds)
        kind.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object, last")
    return parser


def _nothing(_args: argparse.Namespace) -> dict[str, Any]:
    raise UserError(f"name what: wm eval {', '.join(KINDS)}; see wm eval --help")
