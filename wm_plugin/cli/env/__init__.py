"""`wm env STEP`: the worlds that rollouts come from. One module a step."""

import argparse
from typing import Any

from wm_plugin.cli.steps import add_steps

STEPS = ("play",)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "env",
        help=f"worlds: {', '.join(STEPS)}",
        description="The worlds that rollouts come from: ours by name, yours as package.module:Class.",
    )
    return add_steps(parser, "env", STEPS)
