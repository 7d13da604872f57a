"""`wm data filter`: what is not worth learning is left out, and counted."""

import argparse
from typing import Any

from wm_plugin.cli.data.support import progress


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "filter", help="leave out what is not worth learning", description="Each filter counts what it took."
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, or any format that convert reads")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument(
        "--filters", metavar="NAMES", help="separated by commas (default: all but no_change, which is for screens)"
    )
    parser.add_argument(
        "--failure", action="append", default=[], metavar="REGEX", help="an observation that means a failed world"
    )
    parser.add_argument(
        "--invalid", action="append", default=[], metavar="REGEX", help="an observation that answers no action"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """What is left, counted as by convert, and `taken` by each filter."""
    from wm_plugin.trajectories.filter import DEFAULT, Filter
    from wm_plugin.trajectories.readers import read
    from wm_plugin.trajectories.write import write

    names = [name.strip() for name in args.filters.split(",") if name.strip()] if args.filters else DEFAULT
    chosen = Filter(names, failures=args.failure, invalid=args.invalid)
    counts = write(chosen(progress(read(args.source), "trajectories")), args.out)
    return {**counts.as_dict(), "taken": {name: chosen.taken[name] for name in chosen.names}, "out": args.out}


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['trajectories']} trajectories, {result['transitions']} transitions are left")
    for name, count in result["taken"].items():
        print(f"  {name:<20} {count}")
