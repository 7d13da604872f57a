"""`wm data context`: a server writes what the environment hid, from what was recorded, for the world model alone."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.data.support import progress, work_folder
from wm_plugin.cli.eval import model as flags

ANSWERS = "answers.jsonl"
_DESCRIPTION = """\
A model reads each trajectory to its end and writes its hidden context: a summary of the data, permissions, what is available, and
the final state that success requires. World models are shown it (wm data build --hidden), agents and judges never. What a
trajectory has of it already stays, and so does a trajectory for which the model writes nothing of use; both are counted.
"""


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "context",
        help="hidden contexts for the world model, written by a server",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, in any format that convert reads")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet: the trajectories with their contexts")
    flags.add_arguments(parser, "the model that writes", max_new_tokens=8192)
    parser.add_argument(
        "--instruction",
        action="store_true",
        help="also write the simulation instruction: which calls fail, what is withheld, and in which form answers come",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N trajectories")
    parser.add_argument(
        "--work", metavar="DIR", help="keeps answers, to go on from (default: X.work beside X); remove it afterwards"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The counts of `hidden_context.Report`, `asked`, `out`, and `ok`: not all that were asked about failed."""
    from itertools import islice

    from wm_plugin.client.answers import Answers
    from wm_plugin.data.hidden_context import TAGS, WITH_INSTRUCTION, Report, with_contexts
    from wm_plugin.data.outputs import check_apart, check_out
    from wm_plugin.data.readers import read
    from wm_plugin.data.write import SUFFIXES, write

    flags.check(args)
    out = Path(args.out)
    check_out(out, SUFFIXES)
    kept = work_folder(out, args.work) / ANSWERS
    check_apart([args.source, args.model], {"--out": out, "--work": kept})
    answers = Answers(flags.make(args), kept)
    report = Report()
    trajectories = islice(read(args.source), args.limit)
    tags = WITH_INSTRUCTION if args.instruction else TAGS
    write(progress(with_contexts(trajectories, answers, report, tags), "trajectories"), out, sources=[args.source])
    failed = report.failed.total()
    return {**report.as_dict(), "asked": answers.asked, "out": str(out), "ok": not failed or report.filled > 0}


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['filled']:,} of {result['trajectories']:,} trajectories got a hidden context")
    if result["complete"]:
        print(f"  {result['complete']:,} had all of it already")
    for reason, count in result["failed"].items():
        print(f"  {count:,} stay as they are: {reason}")
