"""`wm data filter`: leave out and count what is not worth learning."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import progress
from wm_plugin.errors import UserError, shown

if TYPE_CHECKING:
    from wm_plugin.data.schema import Trajectory

# what each filter takes
TAKES = {
    "empty_actions": "turns without an action",
    "retries": "turns of retry cycles",
    "no_change": "turns after which the screen looks as before",
    "invalid_actions": "turns with an invalid action",
    "environment_failures": "trajectories in which the world failed",
    "too_short": "trajectories with fewer than two turns that were observed",
    "undeclared_tools": "trajectories that call a tool which is not declared",
    "duplicates": "trajectories that are there already",
}


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "filter", help="leave out what is not worth learning", description="Each filter counts what it took."
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, or any format that convert reads")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--for",
        dest="method",
        metavar="METHOD",
        help="the filters of rwml (default), word2world (none: failed actions are what it learns) or agentworld",
    )
    chosen.add_argument(
        "--filters",
        metavar="NAMES",
        help=f"these ones, separated by commas, whatever the domain: {', '.join(TAKES)}",
    )
    parser.add_argument(
        "--domain",
        metavar="NAME",
        help="the domain of SRC: mcp, search, terminal, swe, android, web or os (default: what each row says)",
    )
    parser.add_argument(
        "--failure", action="append", default=[], metavar="REGEX", help="an observation that means a failed world"
    )
    parser.add_argument(
        "--invalid", action="append", default=[], metavar="REGEX", help="an observation that answers no action"
    )
    parser.add_argument(
        "--mask-values", action="store_true", help="tools' JSON results become their schemas, after the filters"
    )
    parser.add_argument(
        "--profile", action="store_true", help="what a user knows of themselves becomes a part of the context (tau2)"
    )
    parser.add_argument(
        "--pool",
        action="append",
        default=[],
        metavar="FILE=SHARE",
        help="beside --out, a file with the trajectories of this share of the tasks; no task is in two of them, whatever the "
        "files (repeatable, e.g. for each training stage)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of which task goes into which pool (default: 0)")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of what is left, as from convert, and `taken`: the counts of each filter.

    `without_domain` counts trajectories that the filters of some domains left alone, because nothing tells theirs. With
    `--mask-values`, `masked` counts results that became schemas; with `--profile`, `profiles` counts changed trajectories.
    """
    from wm_plugin.data.filter import Filter, left_out
    from wm_plugin.data.outputs import check_apart
    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import pool_of
    from wm_plugin.data.write import check_outputs, write

    shares = _pools(args.pool)
    for pool in shares:
        check_outputs(Path(pool), None, [args.source])
    check_apart([], {"--out": Path(args.out), **{f"--pool {pool}": Path(pool) for pool in shares}})

    method = None if args.filters else args.method or "rwml"
    names = None if method else [name.strip() for name in args.filters.split(",") if name.strip()]
    without = left_out(method) if method else ()
    chosen = Filter(names, without=without, domain=args.domain, failures=args.failure, invalid=args.invalid)
    changed = {"masked": 0} if args.mask_values else {}
    changed |= {"profiles": 0} if args.profile else {}
    trajectories = _changed(
        chosen(progress(read(args.source), "trajectories")), args.mask_values, args.profile, changed
    )
    counts = write(trajectories, args.out, sources=[args.source])
    taken = {name: chosen.taken[name] for name in chosen.names}
    apart: dict[str, Any] = {} if names else {"without_domain": chosen.without_domain}
    if shares:
        apart["pools"] = {
            pool: write(
                (one for one in read(args.out) if pool_of(one, shares, args.seed) == pool), pool, sources=[args.source]
            ).trajectories
            for pool in shares
        }
    return {**counts.as_dict(), "method": method, "taken": taken, **apart, **changed, "out": args.out}


def _pools(texts: Iterable[str]) -> dict[str, float]:
    """File -> share, of `--pool`.

    Raises:
        UserError: one is not FILE=SHARE, or the shares are more than 1.
    """
    shares: dict[str, float] = {}
    for text in texts:
        pool, _, share = text.rpartition("=")
        try:
            shares[pool] = float(share)
        except ValueError:
            pool = ""
        if not pool or not 0 < shares[pool] <= 1:
            raise UserError(
                f"--pool {shown(text)}: write FILE=SHARE with a share of the tasks, e.g. --pool sft.jsonl=0.3"
            )
    if len(shares) < len(list(texts)):
        raise UserError("--pool names a file twice")
    if sum(shares.values()) > 1 + 1e-9:
        raise UserError(f"the shares of --pool are {sum(shares.values()):g} in all; they can be 1 at most")
    return shares


def _changed(
    trajectories: Iterable["Trajectory"], mask: bool, profile: bool, counts: dict[str, int]
) -> Iterator["Trajectory"]:
    """Mask values and move profiles, after the filters, which read the values."""
    from wm_plugin.data.values import mask_values, masked, profile_to_context

    for trajectory in trajectories:
        if profile:
            with_profile = profile_to_context(trajectory)
            counts["profiles"] += with_profile is not trajectory
            trajectory = with_profile
        if mask:
            before = masked(trajectory)
            trajectory = mask_values(trajectory)
            counts["masked"] += masked(trajectory) - before
        yield trajectory


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['trajectories']} trajectories, {result['transitions']} transitions are left")
    if result["method"]:
        print(f"filters of {result['method']}" + ("" if result["taken"] else ": none"))
    for name, count in result["taken"].items():
        print(f"  {name:<20} {count:>7} {TAKES[name]}")
    if result.get("without_domain"):
        print(
            f"{result['without_domain']} trajectories name no domain: environment_failures and no_change (of screens) and "
            "undeclared_tools (of mcp and swe) left them alone; --domain NAME says which it is"
        )
    for pool, count in result.get("pools", {}).items():
        print(f"{pool}: {count} trajectories, of tasks of its own")
    if "masked" in result:
        print(f"{result['masked']} results of tools are schemas now")
    if "profiles" in result:
        print(f"{result['profiles']} trajectories say what their users know of themselves")
