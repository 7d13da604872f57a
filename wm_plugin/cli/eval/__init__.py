"""`wm eval STEP`: how good a world model is, and what its rewards are worth. One module a step."""

import argparse
from typing import Any

from wm_plugin.cli.steps import add_steps

STEPS = ("audit",)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "eval",
        help=f"evaluate: {', '.join(STEPS)}",
        description="How good a world model is, and what its rewards are worth.",
    )
    return add_steps(parser, "eval", STEPS)
