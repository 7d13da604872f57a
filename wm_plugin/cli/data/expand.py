"""`wm data expand`: trajectories to transitions."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wm_plugin.cli.data.support import progress, token_counter
from wm_plugin.errors import UserError


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "expand", help="trajectories to transitions", description="History, action, next observation: a sample each."
    )
    parser.add_argument(
        "source", metavar="SRC", help="trajectories, as wm data convert writes them, or any format it reads"
    )
    parser.add_argument("--out", required=True, help="X.jsonl")
    parser.add_argument(
        "--turns",
        default="all",
        help="all (default), one a trajectory at random, or bench: half of first, last and three more",
    )
    history = parser.add_mutually_exclusive_group()
    history.add_argument(
        "--history", type=int, metavar="TURNS", help="turns before the action that are kept (default: all)"
    )
    history.add_argument(
        "--history-tokens",
        type=int,
        metavar="TOKENS",
        help="or the last turns that fit whole into so many tokens",
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="the tokenizer that counts --history-tokens")
    parser.add_argument(
        "--repeat-history",
        action="store_true",
        help="a line for each transition, with its whole history, for other programs: the file is several times as large",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="this share of the tasks goes to X.validation.jsonl",
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`transitions` and `validation`: how many were written to each file."""
    from wm_plugin.data.outputs import check_apart, check_derived, check_out
    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import expand, is_validation
    from wm_plugin.data.write import holds_lines, write_transitions

    out = Path(args.out)
    held_out = out.with_name(f"{out.stem}.validation{out.suffix}")
    share = args.validation_share
    if (args.history_tokens is None) is not (args.tokenizer is None):
        raise UserError("--history-tokens TOKENS and --tokenizer PATH go together: give both or none")
    outs = {"--out": out, "--validation-share": held_out} if share else {"--out": out}
    check_out(out, (".jsonl",))

    def check_held_out() -> None:
        check_derived(held_out, holds_lines, "transitions", "name another file with --out")

    if share:
        check_held_out()
    check_apart([args.source, args.tokenizer], outs)
    count = token_counter(args.tokenizer) if args.tokenizer else None

    def side(validation: bool) -> Iterator[Any]:
        chosen = (t for t in read(args.source) if is_validation(t, share, args.seed) is validation)
        return expand(
            progress(chosen, "trajectories"),
            turns=args.turns,
            history=args.history,
            history_tokens=args.history_tokens,
            count=count,
            seed=args.seed,
        )

    def write(validation: bool, path: Path, check: Callable[[], object] = lambda: None) -> int:
        return write_transitions(side(validation), path, [args.source], repeat_history=args.repeat_history, check=check)

    result = {"transitions": write(False, out), "out": str(out)}
    if share:
        result |= {
            "validation": write(True, held_out, check_held_out),
            "validation_out": str(held_out),
        }
    return result


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['transitions']} transitions")
    if "validation" in result:
        print(f"{result['validation_out']}: {result['validation']} transitions of other tasks")
