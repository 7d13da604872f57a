"""`wm data`: rollouts of any format to trajectories, and trajectories to what is trained on."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from wm_plugin.errors import UserError

T = TypeVar("T")
SUFFIXES = (".json", ".jsonl", ".traj", ".gz", ".parquet")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "data",
        help="make training data of rollouts: convert, filter, expand",
        description="Rollouts of any format to trajectories, and trajectories to training data.",
    )
    parser.set_defaults(run=_nothing)
    steps = parser.add_subparsers(dest="step", metavar="STEP", title="steps")
    convert = steps.add_parser(
        "convert",
        help="any format to trajectories",
        description="Every row is read or rejected; rejected rows go to a file of their own, with the reason.",
    )
    convert.add_argument("sources", nargs="+", metavar="SRC", help="files, or folders of files")
    convert.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    convert.add_argument(
        "--format", default="auto", help="the format of the sources, if it is not to be told by their beginnings"
    )
    convert.add_argument("--rejects", metavar="FILE", help="where rejected rows go (default: X.rejects.jsonl beside X)")
    convert.add_argument("--strict", action="store_true", help="stop at the first row that would be rejected")
    convert.set_defaults(run=run_convert, show=show_convert)
    expand = steps.add_parser(
        "expand", help="trajectories to transitions", description="History, action, next observation: a sample each."
    )
    expand.add_argument(
        "source", metavar="SRC", help="trajectories, as wm data convert writes them, or any format it reads"
    )
    expand.add_argument("--out", required=True, help="X.jsonl")
    expand.add_argument(
        "--turns", default="all", help="all (default), one a trajectory at random, or bench: first, last, three more"
    )
    expand.add_argument(
        "--history", type=int, metavar="TURNS", help="turns before the action that are kept (default: all)"
    )
    expand.add_argument("--seed", type=int, default=0)
    expand.add_argument(
        "--validation-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="this share of the tasks goes to X.validation.jsonl",
    )
    expand.set_defaults(run=run_expand, show=show_expand)
    filtered = steps.add_parser(
        "filter", help="leave out what is not worth learning", description="Each filter counts what it took."
    )
    filtered.add_argument("source", metavar="SRC", help="trajectories, or any format that convert reads")
    filtered.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    filtered.add_argument(
        "--filters", metavar="NAMES", help="separated by commas (default: all but no_change, which is for screens)"
    )
    filtered.add_argument(
        "--failure", action="append", default=[], metavar="REGEX", help="an observation that means a failed world"
    )
    filtered.add_argument(
        "--invalid", action="append", default=[], metavar="REGEX", help="an observation that answers no action"
    )
    filtered.set_defaults(run=run_filter, show=show_filter)
    for step in (convert, expand, filtered):
        step.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object, last")
    return parser


def run_convert(args: argparse.Namespace) -> dict[str, Any]:
    """`trajectories`, `turns`, `transitions`, `observations` by kind, `rejected` and `rejected_by_reason`."""
    from wm_plugin.trajectories.readers import read_rows
    from wm_plugin.trajectories.write import write

    files = _files(args.sources)
    rows = (found for file in files for found in read_rows(file, args.format))
    counts = write(_progress(rows, "rows"), args.out, args.rejects, strict=args.strict)
    return {**counts.as_dict(), "files": len(files), "out": args.out}


def show_convert(result: dict[str, Any]) -> None:
    observed = (
        ", ".join(f"{count} {kind}" for kind, count in result["observations"].items() if count) or "nothing observed"
    )
    print(
        f"{result['out']}: {result['trajectories']} trajectories of {result['files']} files, {result['turns']} turns of the "
        f"agent, {result['transitions']} transitions ({observed})"
    )
    if result["rejected"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result["rejected_by_reason"].items())
        print(f"{result['rejected']} rows rejected ({reasons}): see the rejects file")


def run_expand(args: argparse.Namespace) -> dict[str, Any]:
    """`transitions` and `validation`: how many were written to each file."""
    from wm_plugin.trajectories.expand import expand, is_validation
    from wm_plugin.trajectories.readers import read
    from wm_plugin.trajectories.write import write_transitions

    out = Path(args.out)
    held_out = out.with_name(f"{out.stem}.validation{out.suffix}")
    share = args.validation_share

    def side(validation: bool) -> Iterator[Any]:
        chosen = (t for t in read(args.source) if is_validation(t, share, args.seed) is validation)
        return expand(_progress(chosen, "trajectories"), turns=args.turns, history=args.history, seed=args.seed)

    result = {"transitions": write_transitions(side(False), out), "out": str(out)}
    if share:
        result |= {"validation": write_transitions(side(True), held_out), "validation_out": str(held_out)}
    return result


def show_expand(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['transitions']} transitions")
    if "validation" in result:
        print(f"{result['validation_out']}: {result['validation']} transitions of other tasks")


def run_filter(args: argparse.Namespace) -> dict[str, Any]:
    """What is left, counted as by convert, and `taken` by each filter."""
    from wm_plugin.trajectories.filter import DEFAULT, Filter
    from wm_plugin.trajectories.readers import read
    from wm_plugin.trajectories.write import write

    names = [name.strip() for name in args.filters.split(",") if name.strip()] if args.filters else DEFAULT
    chosen = Filter(names, failures=args.failure, invalid=args.invalid)
    counts = write(chosen(_progress(read(args.source), "trajectories")), args.out)
    return {**counts.as_dict(), "taken": {name: chosen.taken[name] for name in chosen.names}, "out": args.out}


def show_filter(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['trajectories']} trajectories, {result['transitions']} transitions are left")
    for name, count in result["taken"].items():
        print(f"  {name:<20} {count}")


def _nothing(_args: argparse.Namespace) -> dict[str, Any]:
    raise UserError("name a step: wm data convert, filter or expand; see wm data --help")


def _files(sources: list[str]) -> list[Path]:
    """The files that are named, and those in folders that are."""
    found: list[Path] = []
    for source in map(Path, sources):
        inside = (
            sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if source.is_dir()
            else [source]
        )
        if not inside:
            raise UserError(f"{source}: no file in it ends in {', '.join(SUFFIXES)}")
        found += inside
    return found


def _progress(rows: Iterable[T], what: str) -> Iterator[T]:
    """The same rows, counted on a terminal."""
    if not sys.stderr.isatty():
        yield from rows
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} " + what), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        for row in rows:
            yield row
            progress.advance(task)
