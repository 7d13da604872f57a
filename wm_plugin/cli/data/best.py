"""`wm data best`: the best of n outputs for each transition, to fine-tune on (Qwen-AgentWorld)."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.data import predictor
from wm_plugin.cli.data.support import progress
from wm_plugin.errors import UserError, nearest


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "best",
        help="the best of n outputs a transition, to fine-tune on",
        description="A model predicts each transition n times, a judge scores the predictions, and the best output is kept with "
        "its reasoning, if it is good enough.",
    )
    parser.add_argument("source", metavar="SRC", help="transitions, as wm data expand writes them, or trajectories")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument("--host", default="trl", help="trl (default: prompt and completion) or verl (messages)")
    parser.add_argument("--model", metavar="PATH", help="the model that predicts, in this process")
    parser.add_argument("--prompts", required=True, help="a domain (mcp, search, ...), or a file of your own")
    parser.add_argument("--n", type=int, default=3, help="outputs a transition (default: 3)")
    parser.add_argument(
        "--judge", required=True, metavar="REWARD", help="rouge, embedding, exact, ..., or package.module:NAME"
    )
    parser.add_argument("--embedding-model", metavar="PATH", help="for the judges rwml and embedding")
    parser.add_argument("--embedding-server", metavar="URL", help="that has the embedding model; default: this process")
    parser.add_argument(
        "--threshold", type=float, required=True, metavar="SCORE", help="that the best output must reach"
    )
    predictor.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of `transitions`, `candidates` (with a scored prediction) and `retained`; `retain_rate` of the candidates."""
    from wm_plugin.samples import best, rows
    from wm_plugin.samples.predictions import Repeatable, predictions
    from wm_plugin.samples.prompts import load
    from wm_plugin.samples.scores import real_valued
    from wm_plugin.trajectories.expand import transitions_in
    from wm_plugin.trajectories.outputs import check_apart

    out = Path(args.out)
    predictor.check(args, {"--model": args.model})
    if args.host not in rows.HOSTS:
        raise UserError(f"--host: there is no host {args.host!r}{nearest(args.host, rows.HOSTS)}")
    rows.check_rows_out(out, args.host, "sft")
    check_apart([args.source, args.model, args.prompts, args.embedding_model], {"--out": out})
    prompts, judge, report = (
        load(args.prompts),
        real_valued(args.judge, args.embedding_model, args.embedding_server),
        best.Report(),
    )
    outputs = predictions(
        Repeatable(lambda: transitions_in(args.source)),
        predictor.make(args, args.model, thinking=True),
        prompts,
        k=args.n,
        folder=predictor.work_folder(args) / "predictions",
        shard_size=args.shard_size,
        seed=args.seed,
        stage=best.STAGE,
    )
    samples = best.best(
        progress(outputs, "transitions"), judge, prompts, threshold=args.threshold, seed=args.seed, report=report
    )
    rows.write_rows((rows.sft_row(s, args.host, single=True) | s.columns for s in samples), out)
    return {**report.as_dict(), "out": str(out)}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['out']}: {result['retained']} of {result['candidates']} transitions with a prediction are retained "
        f"({result['retain_rate']:.1%}); {result['transitions']} were asked for"
    )
