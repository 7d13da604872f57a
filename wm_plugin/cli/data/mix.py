"""`wm data mix A B`: so many trajectories or rows of each file, shuffled, in one file."""

import argparse
from typing import Any

from wm_plugin.errors import UserError, shown


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "mix",
        help="so many trajectories or rows of each of several files, shuffled",
        description="Draws from each file as many as its --count says, by a seed and without replacement, and shuffles them. "
        "With the same seed a smaller draw is a subset of a larger one. Rows must be built alike; trajectories keep what says "
        "where they come from.",
        epilog="examples:\n"
        "  wm data mix real.jsonl synthetic.jsonl --successful --count 500 --count 500 --out half.jsonl\n"
        "  wm data mix transitions.parquet imitation.parquet --count all --count all --out iwm.parquet\n",
    )
    parser.add_argument("sources", nargs="+", metavar="FILE", help="trajectories, or rows that wm data build wrote")
    parser.add_argument(
        "--count",
        action="append",
        required=True,
        dest="counts",
        metavar="N",
        help="how many of a file, or all: once for each file, in their order, or once for every file",
    )
    parser.add_argument("--successful", action="store_true", help="successful trajectories alone")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn and of the order (default: 0)")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`what` was mixed; `parts`, each with `source`, `there`, `drawn` and `synthetic`; and sums of them."""
    from wm_plugin.data.mix import mix

    counts = [_count(text) for text in args.counts]
    if len(counts) == 1:
        counts *= len(args.sources)
    if len(counts) != len(args.sources):
        raise UserError(f"--count is there {len(counts)} times for {len(args.sources)} files; write it once for each")
    report = mix(args.sources, counts, args.out, successful=args.successful, seed=args.seed)
    return {**report.as_dict(), "out": args.out}


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text)):
        raise UserError(f"--count is {shown(text)}; write a number >= 1, or all")
    return int(text)


def show(result: dict[str, Any]) -> None:
    synthetic = f", {result['synthetic']} of them synthetic" if result["synthetic"] else ""
    print(f"{result['out']}: {result['drawn']} {result['what']}{synthetic}")
    for part in result["parts"]:
        left = f", {part['without_success']} without success left out" if part["without_success"] else ""
        print(f"  {part['drawn']} of {part['there']} from {part['source']}{left}")
    if result["repeated"]:
        print(f"{result['repeated']} are in more than one file, and were drawn from each")
