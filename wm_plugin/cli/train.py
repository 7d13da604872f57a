"""`wm train`: hands its arguments to the TRL entry point, `python -m wm_plugin.trl.train`."""

import argparse
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train",
        add_help=False,  # the entry point knows its flags
        help="train on TRL from a config: wm train --config X.yaml",
    )
    parser.set_defaults(run=run, hands_over=True)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train. The entry point prints, `--json` included; `exit_code` is its own."""
    from wm_plugin.trl.train import main

    return {"exit_code": main(args.rest)}
