"""`wm data convert`: any format to trajectories; every row is read or rejected."""

import argparse
from typing import Any

from wm_plugin.cli.data.support import find_files, progress
from wm_plugin.errors import UserError

MOST_WORKERS = 256


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "convert",
        help="any format to trajectories",
        description="Every row is read or rejected; rejected rows go to a file of their own, with the reason.",
    )
    parser.add_argument("sources", nargs="+", metavar="SRC", help="files, or folders of files")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument(
        "--format", default="auto", help="the format of the sources, if it is not to be told by their beginnings"
    )
    parser.add_argument("--rejects", metavar="FILE", help="where rejected rows go (default: X.rejects.jsonl beside X)")
    parser.add_argument("--strict", action="store_true", help="stop at the first row that would be rejected")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes (default: 1); what they write is the same"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`trajectories`, `turns`, `transitions`, `observations` by kind, `rejected`, `rejected_by_reason`, their file `rejects`."""
    from wm_plugin.trajectories import parallel
    from wm_plugin.trajectories.fields import check
    from wm_plugin.trajectories.readers import read_rows
    from wm_plugin.trajectories.write import path_of_rejects, write

    if not 1 <= args.workers <= MOST_WORKERS:
        raise UserError(f"--workers is {args.workers}; write a number from 1 to {MOST_WORKERS}")
    files = find_files(args.sources)
    if args.workers > 1:
        counts = parallel.convert(
            files,
            args.out,
            args.rejects,
            workers=args.workers,
            format=args.format,
            strict=args.strict,
            watch=lambda shards: progress(shards, "parts"),
        )
    else:
        rows = (row for file in files for row in read_rows(file, args.format, make=check))
        counts = write(progress(rows, "rows"), args.out, args.rejects, strict=args.strict, sources=files)
    rejects = str(path_of_rejects(args.out, args.rejects)) if counts.rejected else None
    return {
        **counts.as_dict(),
        "files": len(files),
        "out": args.out,
        "rejects": rejects,
        "ok": counts.trajectories > 0,
    }


def show(result: dict[str, Any]) -> None:
    observed = (
        ", ".join(f"{count} {kind}" for kind, count in result["observations"].items() if count) or "nothing observed"
    )
    files = "1 file" if result["files"] == 1 else f"{result['files']} files"
    print(
        f"{result['out']}: {result['trajectories']} trajectories from {files}, {result['turns']} turns of the "
        f"agent, {result['transitions']} transitions ({observed})"
    )
    if result["rejected"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result["rejected_by_reason"].items())
        print(f"{result['rejected']} rows rejected ({reasons}): see {result['rejects']}")
    if not result["ok"]:
        print("nothing was read: --format names the format, if it is not the one that was guessed")
