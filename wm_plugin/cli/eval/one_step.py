"""`wm eval one-step`: how often a world model writes the next observation, word for word."""

import argparse
from typing import Any

from wm_plugin.cli.data.support import progress


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "one-step",
        help="how often a world model writes the next observation, word for word",
        description="Exact match of what the model writes at temperature 0 after each action of real episodes, white space at "
        "the ends aside, the success mark included; the share of all turns, and by step.",
    )
    parser.add_argument("source", metavar="SRC", help="trajectories, or any format that wm data convert reads")
    parser.add_argument("--model", metavar="PATH", help="the world model, in this process")
    parser.add_argument("--server", metavar="URL", help="or behind an OpenAI-compatible server")
    parser.add_argument("--server-model", metavar="NAME", help="the name under which the server has it")
    parser.add_argument("--prompts", default="word2world", metavar="FAMILY", help="that it was trained with")
    parser.add_argument(
        "--world-context",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show it the hidden state that rollouts carry (default), as wm data build --as word2world does",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N trajectories")
    parser.add_argument("--max-new-tokens", type=int, default=1024, metavar="N", help="of an output (default: 1024)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="outputs at once, without a server")
    parser.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once, to a server")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts' variants, as in wm data build")
    parser.set_defaults(run=run, show=show, temperature=0.0, shard_size=1, no_seed=False)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`turns`, the shares `exact`, `text`, `mark` and `word_f1`, `unanswered`, and the same `by_step`."""
    from itertools import islice

    from wm_plugin.cli.data import predictor
    from wm_plugin.errors import UserError
    from wm_plugin.evaluation.fidelity import fidelity
    from wm_plugin.samples.prompts import load
    from wm_plugin.trajectories.readers import read

    predictor.check(args, {"--model": args.model})
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}; write a number >= 1")
    prompts = load(args.prompts)
    trajectories = progress(islice(read(args.source), args.limit), "trajectories")
    model = predictor.make(args, args.model, thinking=False)
    result = fidelity(trajectories, model, prompts, world_context=args.world_context, seed=args.seed)
    return {"source": args.source, **result.as_dict(), "ok": result.all.turns > 0}


def show(result: dict[str, Any]) -> None:
    if not result["turns"]:
        print(f"{result['source']}: no turn with an observation")
        return
    print(f"{result['source']}: {result['exact']:.1%} of {result['turns']:,} turns exact, success mark included")
    print(f"  text {result['text']:.1%}, mark {result['mark']:.1%}, word F1 {result['word_f1']:.3f}")
    if result["unanswered"]:
        print(f"  {result['unanswered']:,} turns have no answer and count as wrong")
    for step, counts in result["by_step"].items():
        print(f"  step {step:>3} {counts['exact']:>7.1%} of {counts['turns']:,}")
