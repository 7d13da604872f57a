"""`wm train`: hands its arguments to the TRL entry point, `python -m wm_plugin.trl.train`."""

import argparse
from typing import Any

from wm_plugin.runtime.command import output


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "train",
        add_help=False,  # the entry point knows its flags
        help="train on TRL from a config: wm train --config X.yaml",
    )
    parser.set_defaults(run=run, hands_over=True)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train. The entry point prints, `--json` included; `exit_code` is its own. Help and a file's mistakes do without it."""
    if "--help-all" not in args.rest:
        if {"-h", "--help"} & set(args.rest):
            from wm_plugin.trl.settings import help_text

            with output():
                print(help_text(), end="")
            return {"exit_code": 0}
        from wm_plugin.hosting import config_file

        config_file.split([argument for argument in args.rest if argument != "--json"])
    from wm_plugin.trl.train import main  # trl's imports take many seconds

    return {"exit_code": main(args.rest)}
