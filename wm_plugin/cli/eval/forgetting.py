"""`wm eval forgetting`: general benchmarks before and after a training, by lm-eval."""

import argparse
from typing import Any

from wm_plugin.cli.eval.lines import print_lines
from wm_plugin.errors import UserError

_EPILOG = """\
examples:
  wm eval forgetting --model runs/trained --before Qwen/Qwen2.5-7B-Instruct --out out/forgetting --backend vllm
  wm eval forgetting --results theirs/trained --before-results theirs/base --out out/forgetting
"""


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "forgetting",
        help="what a training made a model forget: general benchmarks, by lm-eval",
        description="Runs the general benchmarks of the papers by lm-eval (the extra `forgetting`) before and after a training, "
        "or reads results that lm-eval wrote, and compares them question by question where samples were logged.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="PATH", help="run the benchmarks on this model")
    parser.add_argument("--before", metavar="PATH", help="and on the model that it was trained from")
    parser.add_argument(
        "--results", metavar="PATH", help="or read lm-eval's results: a file, or a folder with results_*.json"
    )
    parser.add_argument("--before-results", metavar="PATH", help="and those of the model that it was trained from")
    parser.add_argument(
        "--config", default="rwml", metavar="NAME", help="rwml, wmact, or a config of lm-eval by path (default: rwml)"
    )
    parser.add_argument(
        "--backend", default="hf", metavar="NAME", help="what runs the model in lm-eval: hf, vllm, ... (default: hf)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N questions of each benchmark, for a try")
    parser.add_argument("--seed", type=int, default=0, help="seed of the intervals")
    parser.add_argument("--out", metavar="DIR", help="keeps lm-eval's results, and what was measured")
    parser.set_defaults(run=run, show=print_lines)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation: `score` by benchmark and their mean, and with a model before it `score_before` and `score_difference`."""
    from wm_plugin.lab.evaluation import forgetting
    from wm_plugin.lab.evaluation.measures import open_folder, write_result, write_rows

    if bool(args.model) is bool(args.results):
        raise UserError(
            "name a model to run the benchmarks on (--model), or results of lm-eval (--results); one of them"
        )
    if (args.before and not args.model) or (args.before_results and not args.results):
        raise UserError("--before goes with --model, and --before-results with --results")
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}; write a number >= 1")
    if args.model and not args.out:
        raise UserError("--out is missing: a folder that keeps lm-eval's results")
    subject = args.model or args.results
    earlier = args.before or args.before_results
    data = args.config if args.model else ""
    if args.model:
        forgetting.check_installed()
        settings = forgetting.config(args.config)
    if args.results:  # bad ones leave no folder behind
        after, before = forgetting.scores(args.results), forgetting.scores(earlier) if earlier else None
    folder = open_folder(args.out, "forgetting", subject, data) if args.out else None
    if args.model and folder:
        models = {"after": args.model, **({"before": args.before} if args.before else {})}
        for name, model in models.items():
            forgetting.run(model, folder / name, settings, backend=args.backend, limit=args.limit)
        after = forgetting.scores(folder / "after")
        before = forgetting.scores(folder / "before") if args.before else None
    own = {"before": earlier, "config": data, "backend": args.backend if args.model else "", "limit": args.limit}
    result = forgetting.evaluation(after, before, subject=subject, data=data, settings=own, seed=args.seed)
    if folder:
        write_rows(forgetting.rows(after, before), folder)
        write_result(result, folder)
    return {**result.as_dict(), "ok": True}
