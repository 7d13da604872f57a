"""`wm eval STEP`: evaluates world models and rewards. One module per step."""

import argparse
from typing import Any

from wm_plugin.cli.steps import add_steps

STEPS = ("audit", "bench", "consistency", "foresight", "forgetting", "lookahead", "one-step", "perplexity", "weights")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "eval",
        help=f"evaluate: {', '.join(STEPS)}",
        description="Evaluate world models and rewards.",
    )
    return add_steps(parser, "eval", STEPS)
