"""`wm data STEP`: rollouts of any format to trajectories, and trajectories to training data. One module per step."""

import argparse
from typing import Any

from wm_plugin.cli.steps import add_steps

STEPS = (
    "convert",
    "inspect",
    "filter",
    "context",
    "control",
    "expand",
    "easy",
    "best",
    "prompts",
    "search-prompts",
    "build",
    "synthesize",
    "mix",
    "alternatives",
    "reflect",
    "fictional",
    "scenarios",
)  # in the order of use


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data",
        help=f"make training data of rollouts: {', '.join(STEPS)}",
        description="Rollouts of any format to trajectories, and trajectories to training data.",
    )
    return add_steps(parser, "data", STEPS)
