"""`wm data build`: trajectories or transitions to files that TRL and verl train on."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli import state
from wm_plugin.cli.data.support import progress
from wm_plugin.data.outputs import check_out
from wm_plugin.data.write import SUFFIXES

KINDS = "rwml-sft, rwml, word2world, agentworld-sft, agentworld, cpt, imitation or rft"


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "build",
        help="the files that TRL and verl train on",
        description="Samples with their prompts, in the columns that a stock trainer reads.",
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, transitions, or any format that convert reads")
    parser.add_argument("--as", required=True, dest="kind", metavar="KIND", help=KINDS)
    parser.add_argument("--host", required=True, help="trl or verl")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument(
        "--prompts",
        metavar="FAMILY",
        help="rwml, word2world, a domain (mcp, search, ...), or the path of a file of your own",
    )
    parser.add_argument(
        "--domain",
        metavar="NAME",
        help="with agentworld: whose guidance the judge gets, if the prompts are a file of your own",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="fine-tuning: write tokens and a mask, the same for both hosts; else: to count only",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the limit of a sample")
    parser.add_argument(
        "--too-long",
        default="drop",
        metavar="HOW",
        help="samples over --max-tokens: drop (default), or truncate dialogues to it (Word2World as released); both counted",
    )
    parser.add_argument(
        "--turn-information", action="store_true", help="observations count with the probability of their category"
    )
    state.add_arguments(parser, "all for word2world, initial-state for every other kind")
    parser.add_argument(
        "--history", type=int, metavar="TURNS", help="turns before the action that are kept (default: all)"
    )
    parser.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="FILE",
        help="with cpt: texts of your own too (.txt and .md, a text each; .jsonl, one a line in the field text); repeatable",
    )
    parser.add_argument(
        "--success-reward", type=float, metavar="R", help="with rft: a reward of R or more counts as a success, too"
    )
    parser.add_argument("--per-task", type=int, metavar="N", help="with rft: at most N trajectories of each task")
    parser.add_argument("--split", default="train", help="what verl's extra_info says (default: train)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`rows`, `tokens`, `counted_tokens` (0 without a tokenizer), `left_out` by reason, `truncated`, `categories`."""
    check_out(Path(args.out), SUFFIXES)  # before imports of many seconds
    from wm_plugin.data.building import build

    report = build(
        args.source,
        args.kind,
        args.host,
        args.out,
        prompts=args.prompts,
        domain=args.domain,
        tokenizer=args.tokenizer,
        max_tokens=args.max_tokens,
        too_long=args.too_long,
        turn_information=args.turn_information,
        world_context=state.shown(args),
        context_file=args.context_file,
        history=args.history,
        corpora=args.corpus,
        threshold=args.success_reward,
        per_task=args.per_task,
        split=args.split,
        seed=args.seed,
        watch=lambda samples: progress(samples, "samples"),
    )
    return {**report.as_dict(), "out": args.out}


def show(result: dict[str, Any]) -> None:
    tokens = f", {result['tokens']:,} tokens" if result["tokens"] else ""
    counted = f", {result['counted_tokens']:,} of them count" if result["counted_tokens"] else ""
    print(f"{result['out']}: {result['rows']:,} rows{tokens}{counted}")
    for reason, count in result["left_out"].items():
        print(f"  {count:,} left out: {reason}")
    if result["truncated"]:
        print(
            f"  {result['truncated']:,} truncated to --max-tokens, {result['tokens_cut']:,} tokens of their ends are lost"
        )
    for name, counts in result["categories"].items():
        print(f"  {name:<12} {counts['kept']:>8,} count {counts['dropped']:>8,} are context")
    if result["assistant_only_loss"]:
        print(
            "trl sft trains on every message of these rows, the user's too, unless you set assistant_only_loss: true (with a "
            "chat template that marks the assistant's words by {% generation %}); with --tokenizer the rows are tokens and a mask"
        )
    if result["calls_as_text"]:
        print(
            f"{result['calls_as_text']:,} rows have tool calls, with arguments as JSON text. A chat template that writes them "
            "as JSON itself (Qwen2.5's) would quote them once more: with --tokenizer the rows are tokens"
        )
    for note in result["notes"]:
        print(f"note: {note}")
