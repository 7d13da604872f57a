"""`wm data inspect`: statistics of datasets, as a table and as a page."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wm_plugin.cli.data.support import progress, token_counter
from wm_plugin.errors import UserError
from wm_plugin.untrusted import loads


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "inspect",
        help="what a dataset holds: lengths, tools, errors, categories, samples",
        description="Several datasets are shown side by side, for example before and after a filter.",
    )
    parser.add_argument(
        "sources", nargs="+", metavar="SRC", help="trajectories, transitions, or any format that convert reads"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with samples too (needs the extra report)")
    parser.add_argument("--tokenizer", metavar="PATH", help="lengths in its tokens instead of characters")
    parser.add_argument("--samples", type=int, default=8, help="transitions to show of each (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="seed of which samples are drawn")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`datasets`: the figures of each source by its name; `html`, if a page was written."""
    from wm_plugin.data.outputs import check_apart, check_out
    from wm_plugin.data.summary import Summary

    if args.samples < 0:
        raise UserError(f"--samples is {args.samples}; write a number >= 0")
    if len(set(args.sources)) < len(args.sources):
        raise UserError("a source is named twice; name each once")
    if args.html:
        check_out(Path(args.html))
        inputs = [*args.sources, args.tokenizer, *map(_scores, map(Path, args.sources))]
        check_apart(inputs, {"--html": Path(args.html)})
    measure = token_counter(args.tokenizer) if args.tokenizer else None
    summaries = {}
    for source in args.sources:
        summary = Summary(measure, samples=args.samples, seed=args.seed)
        for record in progress(_records(Path(source)), "records"):
            summary.add(record)
        summaries[source] = summary, summary.as_dict() | _easy(Path(source))
    result: dict[str, Any] = {"datasets": {name: figures for name, (_, figures) in summaries.items()}}
    if args.html:
        from wm_plugin.data.summary_page import write_page

        result["html"] = str(write_page(summaries, args.html))
    return result


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from wm_plugin.data.summary_page import rows, share
    from wm_plugin.tokens.view import visible

    console = Console(highlight=False, markup=False)
    tables = {name: dict(rows(figures)) for name, figures in result["datasets"].items()}
    table = Table("", *map(visible, tables))
    for label in dict.fromkeys(label for lines in tables.values() for label in lines):
        table.add_row(label, *(lines.get(label, "-") for lines in tables.values()))
    console.print(table)
    for name, figures in result["datasets"].items():
        tools = Table("tool, or (kind)", "observations", "errors", "empty", figures["unit"], title=visible(name))
        for tool, values in figures["tools"].items():
            tools.add_row(
                visible(tool),
                f"{values['observations']:,}",
                share(values["error_share"]),
                share(values["empty_share"]),
                f"{values['length']['median']:,.0f} (max {values['length']['max']:,.0f})",
            )
        console.print(tools)
        whole = figures["transitions"]
        shares = [f"{kind} {share(value, whole)}" for kind, value in figures["categories"].items() if value]
        console.print(f"turn information: {', '.join(shares) or 'no transition'}")
    if "html" in result:
        console.print(f"page: {result['html']}")


def _records(path: Path) -> Iterator[Any]:
    """The transitions of a file that `expand` wrote, else the file's trajectories."""
    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import holds_transitions, read_transitions

    return read_transitions(path) if holds_transitions(path) else read(path)


def _easy(source: Path) -> dict[str, float]:
    """The share of easy samples and of how many it is, where the easy filter left its scores beside the file."""
    scores = _scores(source)
    if not scores.is_file():
        return {}
    try:
        flags = [bool(loads(line)["easy"]) for line in scores.read_bytes().splitlines() if line]
    except (ValueError, LookupError, TypeError, OSError):
        raise UserError(f"{scores}: not what wm data easy writes; remove it, or move it elsewhere") from None
    return {"easy_share": sum(flags) / len(flags), "easy_of": len(flags)} if flags else {}


def _scores(source: Path) -> Path:
    return source.with_name(f"{source.stem}.easy.jsonl")
