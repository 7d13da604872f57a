"""`wm data convert`: any format to trajectories; every row is read or rejected."""

import argparse
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import find_files, progress
from wm_plugin.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from wm_plugin.data.observers import Observed

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
    parser.add_argument(
        "--environment",
        action="append",
        default=[],
        metavar="NAME",
        help="the world that a host's rollouts are of, by name or as package.module:Class: it says whose answers they are, "
        "and which tools the agent had (repeatable)",
    )
    parser.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="a tool that the agent had, as package.module:function, for rows without tool schemas (repeatable)",
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
    from wm_plugin.data import parallel
    from wm_plugin.data.fields import check
    from wm_plugin.data.readers import read_rows
    from wm_plugin.data.write import path_of_rejects, write

    if not 1 <= args.workers <= MOST_WORKERS:
        raise UserError(f"--workers is {args.workers}; write a number from 1 to {MOST_WORKERS}")
    files = find_files(args.sources)
    make = _observed(args.environment, args.tools) if args.environment or args.tools else check
    if args.workers > 1:
        counts = parallel.convert(
            files,
            args.out,
            args.rejects,
            workers=args.workers,
            format=args.format,
            strict=args.strict,
            make=make,
            watch=lambda shards: progress(shards, "parts"),
        )
    else:
        rows = (row for file in files for row in read_rows(file, args.format, make=make))
        counts = write(progress(rows, "rows"), args.out, args.rejects, strict=args.strict, sources=files)
    rejects = str(path_of_rejects(args.out, args.rejects)) if counts.rejected else None
    return {
        **counts.as_dict(),
        "files": len(files),
        "out": args.out,
        "rejects": rejects,
        "ok": counts.trajectories > 0,
    }


def _observed(names: list[str], functions: list[str]) -> "Observed":
    """What these environments declare of their tools, together, and functions that are tools beside theirs."""
    from wm_plugin.cli.env.support import named
    from wm_plugin.cli.steps import search_here
    from wm_plugin.data.observers import Observed
    from wm_plugin.registry import import_object
    from wm_plugin.worlds.kit.protocol import tool_names

    kinds: dict[str, Any] = {}
    refusals: dict[str, tuple[str, ...] | None] = {}
    worlds = []
    for name in names:
        world = named(name)
        worlds.append((name, world.environment))
        for tool, kind in world.observers.items():
            if kinds.setdefault(tool, kind) != kind:
                raise UserError(
                    f"--environment: what {tool} is answered with is observed as {kinds[tool]} in one world and as {kind} in "
                    f"{name}: convert their rollouts one by one"
                )
            before = refusals.get(tool, ())
            refusals[tool] = None if before is None or world.refusals is None else before + world.refusals
    search_here()
    alone = [_schema(import_object(path, field="--tools"), f"--tools: {path}") for path in functions]
    tools = [alone] if functions and not names else []
    with suppress(MissingExtraError):  # without transformers a world's tools have no schemas
        for name, cls in worlds:
            own = [_schema(getattr(cls, tool), f"--environment: {name}.{tool}") for tool in tool_names(cls)]
            tools.append([*alone, *own])
    known = {tool: texts for tool, texts in refusals.items() if texts is not None}
    return Observed(kinds, known, tools)


def _schema(function: Any, where: str) -> dict[str, Any]:
    """The schema of a tool.

    Raises:
        UserError: it has no annotations or docstring of which hosts can make one.
    """
    from wm_plugin.worlds.kit.protocol import tool_schema

    try:
        return tool_schema(function)
    except UserError:
        raise
    except Exception as error:  # transformers raises errors of its own kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{where} has no schema ({reason}); write annotations, and a docstring of its arguments"
        ) from None


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
    if result["ok"] and not result["transitions"]:
        print(
            "no transition: nothing follows an action; --format names the format, if the model is the world in these rows"
        )
    if not result["ok"]:
        print("nothing was read: --format names the format, if it is not the one that was guessed")
