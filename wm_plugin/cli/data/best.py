"""`wm data best`: the best of n outputs for each transition, to fine-tune on (Qwen-AgentWorld)."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.data import predictor
from wm_plugin.cli.data.support import progress, reward_arguments, work_folder
from wm_plugin.errors import UserError, nearest


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "best",
        help="the best of n outputs a transition, to fine-tune on",
        description="A model predicts each transition n times, a judge scores the predictions, a second one may compare them in "
        "pairs, and the best output is kept with its reasoning, if its score is good enough.",
    )
    parser.add_argument("source", metavar="SRC", help="transitions, as wm data expand writes them, or trajectories")
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    parser.add_argument("--host", default="trl", help="trl (default: prompt and completion) or verl (messages)")
    parser.add_argument("--model", metavar="PATH", help="the model that predicts, in this process")
    parser.add_argument("--prompts", required=True, help="a domain (mcp, search, ...), or a file of your own")
    parser.add_argument("--n", type=int, default=3, help="outputs a transition (default: 3)")
    parser.add_argument(
        "--judge", required=True, metavar="REWARD", help="rubric, rouge, embedding, ..., or package.module:NAME"
    )
    parser.add_argument("--judge-args", default="{}", metavar="JSON", help="its arguments, such as a rubric's server")
    parser.add_argument(
        "--compare",
        metavar="REWARD",
        help="reference, or package.module:NAME: compares the outputs in pairs (default: by score)",
    )
    parser.add_argument("--compare-args", default="{}", metavar="JSON", help="its arguments")
    parser.add_argument(
        "--embedding-model", metavar="PATH", help="the embedding model of the judges rwml and embedding"
    )
    parser.add_argument(
        "--embedding-server",
        metavar="URL",
        help="a server that has the embedding model (default: load it in this process)",
    )
    parser.add_argument(
        "--threshold", type=float, required=True, metavar="SCORE", help="the score that the best output must reach"
    )
    parser.add_argument(
        "--turn-information",
        action="store_true",
        help="leave transitions out with the probability of their category, as build does",
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="write tokens and a mask, the same for both hosts, as build does"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="leave longer samples out, and count them")
    predictor.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of `transitions`, `candidates` (with a scored prediction), `compared` pairs and `retained`, and `rows` written;
    `retain_rate` of the candidates."""
    from wm_plugin.data import best, rows
    from wm_plugin.data.building import last_message_rows
    from wm_plugin.data.kinds import Exclusions, informative
    from wm_plugin.data.outputs import check_apart, files_in
    from wm_plugin.data.predictions import Repeatable, predictions
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import real_valued
    from wm_plugin.data.tokenize import Tokeniser
    from wm_plugin.data.transitions import transitions_in
    from wm_plugin.rewards.make import make
    from wm_plugin.tokens.tokenizer import load_tokenizer

    out = Path(args.out)
    predictor.check(args, {"--model": args.model})
    if args.host not in rows.HOSTS:
        raise UserError(f"--host: there is no host {args.host!r}{nearest(args.host, rows.HOSTS)}")
    rows.check_rows_out(out, args.host, "sft")
    if args.max_tokens is not None and (args.max_tokens < 1 or args.tokenizer is None):
        raise UserError(f"--max-tokens is {args.max_tokens}; write a number >= 1, beside a --tokenizer to count with")
    arguments = reward_arguments(args.judge, args.judge_args, "--judge-args")
    kwargs = reward_arguments(args.compare, args.compare_args, "--compare-args") if args.compare else {}
    inputs = [args.source, args.model, args.prompts, args.embedding_model, args.tokenizer]
    check_apart([*inputs, *files_in([arguments, kwargs])], {"--out": out})
    work = work_folder(out, args.work)
    judge = real_valued(args.judge, args.embedding_model, args.embedding_server, arguments)
    compare = None
    if args.compare:
        compare = make({"path": args.compare, "kwargs": kwargs}, field="--compare")
    prompts, report = load(args.prompts), best.Report()
    tokeniser = Tokeniser(load_tokenizer(args.tokenizer, field="--tokenizer")) if args.tokenizer else None

    def transitions() -> Any:
        read = transitions_in(args.source)
        return informative(read, args.seed, Exclusions()) if args.turn_information else read

    outputs = predictions(
        Repeatable(transitions),
        predictor.make(args, args.model, thinking=True),
        prompts,
        k=args.n,
        folder=work / "predictions",
        shard_size=args.shard_size,
        seed=args.seed,
        stage=best.STAGE,
    )
    samples = best.best(
        progress(outputs, "transitions"),
        judge,
        prompts,
        threshold=args.threshold,
        compare=compare,
        seed=args.seed,
        report=report,
    )
    written = rows.write_rows(last_message_rows(samples, args.host, tokeniser, args.max_tokens), out)
    return {**report.as_dict(), "rows": written, "out": str(out)}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['out']}: {result['retained']} of {result['candidates']} transitions with a prediction are retained "
        f"({result['retain_rate']:.1%}); {result['transitions']} were asked for"
    )
    if result["compared"]:
        print(f"{result['compared']} pairs of outputs were compared")
    if result["rows"] < result["retained"]:
        print(f"{result['retained'] - result['rows']} are left out: too long, or with half a surrogate pair")
