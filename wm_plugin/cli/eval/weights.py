"""`wm eval weights`: which share of a model's weights a training changed."""

import argparse
from typing import Any

from wm_plugin.cli.data.support import progress
from wm_plugin.cli.eval.lines import print_rest
from wm_plugin.errors import UserError


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "weights",
        help="which share of a model's weights a training changed",
        description="The share of weights with |after - before| > eta * max(|before|, |after|), of all that are finite and "
        "not zero in both (RWML, appendix E), by layer and module. Reads safetensors files, and runs no code of a model.",
    )
    parser.add_argument(
        "--model", required=True, metavar="PATH", help="the trained model: a folder, or a file or an index in it"
    )
    parser.add_argument("--before", required=True, metavar="PATH", help="the model that it was trained from")
    parser.add_argument(
        "--eta", type=float, default=1e-3, metavar="X", help="changes up to this share are none (default: 0.001)"
    )
    parser.add_argument("--out", metavar="DIR", help="write the measures and a row for each tensor there")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation: `changed` of all weights, by `layer`, by `module` and by `layer/module`."""
    from wm_plugin.lab.evaluation.measures import open_folder, write_result, write_rows
    from wm_plugin.lab.evaluation.weights import changes, evaluation, pair, row

    if not 0 <= args.eta < 1:
        raise UserError(f"--eta is {args.eta}; write a number >= 0 and < 1")
    pairs = pair(args.before, args.model)
    folder = open_folder(args.out, "weights", args.model, args.before) if args.out else None
    compared = list(progress(changes(pairs, args.eta), "tensors"))
    result = evaluation(compared, pairs, args.before, args.model, args.eta)
    if folder:
        write_rows(map(row, compared), folder)
        write_result(result, folder)
    return {**result.as_dict(), "ok": result.measure("changed").value is not None}


def show(result: dict[str, Any]) -> None:
    """Print the share of all weights, and tables of layers and modules."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    rows = [one for one in result["measures"] if one["by"] in ("", "layer", "module")]
    table = Table("", "", "changed", "weights", title=f"{result['subject']}, trained from {result['data']}")
    for one in rows:
        share = "–" if one["value"] is None else f"{one['value']:.2%}"
        table.add_row(one["by"] or "all", one["group"], share, f"{one['count']:,}")
    console.print(table)
    print_rest(result)
