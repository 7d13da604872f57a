"""`wm data easy`: drop most of what a briefly trained model predicts already (RWML)."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from wm_plugin.cli.data import predictor
from wm_plugin.cli.data.support import progress, work_folder
from wm_plugin.errors import UserError

TARGET_SHARE = 0.3  # the paper's share, on both its benchmarks


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "easy",
        help="thin out what a briefly trained model predicts already",
        description="A filter model is trained on a share of the tasks and predicts the rest K times. Of what it gets right, a "
        "part is kept. The share that trained it is left out of the result.",
    )
    parser.add_argument("source", metavar="SRC", help="transitions, as wm data expand writes them, or trajectories")
    parser.add_argument("--out", required=True, help="X.jsonl; X.easy.jsonl beside it has every sample's distances")
    parser.add_argument("--model", metavar="PATH", help="the base that the filter model is trained from")
    parser.add_argument(
        "--filter-model", metavar="PATH", help="a filter model that is trained; all of SRC is predicted"
    )
    parser.add_argument("--prompts", default="rwml", help="a family, or a file of your own (default: rwml)")
    parser.add_argument("--k", type=int, default=10, help="predictions a sample (default: 10)")
    parser.add_argument(
        "--reward",
        default="rwml",
        help="rwml (default: rouge for tools, else embedding), rouge, embedding, exact, ..., or package.module:NAME",
    )
    parser.add_argument(
        "--embedding-model", metavar="PATH", help="the embedding model of the rewards rwml and embedding"
    )
    parser.add_argument(
        "--embedding-server",
        metavar="URL",
        help="a server that has the embedding model (default: load it in this process)",
    )
    parser.add_argument("--threshold", type=float, metavar="D", help="a prediction below this distance is right")
    parser.add_argument(
        "--target-easy-share",
        type=float,
        metavar="SHARE",
        help=f"find the threshold for this share (default: {TARGET_SHARE})",
    )
    parser.add_argument(
        "--tau-easy", type=float, default=0.0, metavar="SHARE", help="easy: more than this share is right (default: 0)"
    )
    parser.add_argument(
        "--keep", type=float, default=0.1, metavar="P", help="share of the easy transitions that stays (default: 0.1)"
    )
    training = parser.add_argument_group("the filter model's training")
    training.add_argument(
        "--filter-share",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of the tasks that train the filter model (default: 0.1)",
    )
    training.add_argument(
        "--filter-data",
        metavar="FILE",
        help="train on these instead, e.g. the validation split; all of SRC is predicted",
    )
    training.add_argument("--epochs", type=float, default=2.0)
    training.add_argument("--learning-rate", type=float, default=2e-6)
    training.add_argument("--train-batch-size", type=int, default=32, metavar="N", help="samples a step (default: 32)")
    predictor.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Counts of transitions, also by who was observed, `easy_share`, `threshold`; counts of `failed` and `malformed` predictions,
    and of `alike` transitions.
    """
    from wm_plugin.data import easy
    from wm_plugin.data.predictions import Repeatable, predictions
    from wm_plugin.data.prompts import load
    from wm_plugin.data.scores import NO_MODEL, real_valued
    from wm_plugin.data.transitions import transitions_in

    out = Path(args.out)
    _check(args, out)
    work = work_folder(out, args.work)
    prompts = load(args.prompts)
    reward = real_valued(args.reward, args.embedding_model, args.embedding_server)
    share = args.filter_share if args.model and not args.filter_data else 0.0
    everything = Repeatable(lambda: transitions_in(args.source))
    rest = Repeatable(lambda: (t for t in everything if not easy.trains_filter(t, share, args.seed)))
    kinds = Counter(transition.observation.kind for transition in everything)
    if args.reward == "rwml" and not args.embedding_model and kinds.total() > kinds["tool"]:
        raise UserError(f"not all observations are tools' results: {NO_MODEL}")

    trained_on, model = 0, args.filter_model
    if args.model:
        predictor.quiet()
        train = (t for t in everything if easy.trains_filter(t, share, args.seed))
        trained_on = easy.train_filter(
            transitions_in(args.filter_data) if args.filter_data else train,
            prompts,
            args.model,
            work / "filter",
            seed=args.seed,
            epochs=args.epochs,
            learning_rate=args.learning_rate,
            batch_size=args.train_batch_size,
        )
        model = work / "filter"
    outputs = predictions(
        rest,
        predictor.make(args, model, thinking=False),
        prompts,
        k=args.k,
        folder=work / "predictions",
        shard_size=args.shard_size,
        seed=args.seed,
        stage=easy.STAGE,
        thinking=False,
    )
    distances = list(easy.distances(progress(outputs, "transitions"), reward, prompts))
    threshold = args.threshold
    if threshold is None:
        target = TARGET_SHARE if args.target_easy_share is None else args.target_easy_share
        threshold = easy.solve_threshold((row.values for row in distances), args.tau_easy, target)
    report = easy.write_filtered(
        rest, distances, out, threshold=threshold, tau_easy=args.tau_easy, keep=args.keep, seed=args.seed
    )
    return {
        "transitions": kinds.total(),
        "observations": {kind: kinds[kind] for kind in ("tool", "user", "environment")},
        "trained_on": trained_on,
        **report.as_dict(),
        "failed": sum(args.k - len(row.values) for row in distances),
        "malformed": sum(row.malformed for row in distances),
        "alike": sum(row.alike for row in distances),
        "out": str(out),
        "scores": str(easy.scores_path(out)),
    }


def _check(args: argparse.Namespace, out: Path) -> None:
    from wm_plugin.data.easy import check_scores
    from wm_plugin.data.outputs import check_apart, check_out

    predictor.check(args, {"--model": args.model, "--filter-model": args.filter_model})
    check_out(out, (".jsonl",))
    models = (args.model, args.filter_model, args.embedding_model)
    scores = check_scores(out)
    check_apart([args.source, args.filter_data, args.prompts, *models], {"--out": out, "the scores": scores})
    if args.threshold is not None and args.target_easy_share is not None:
        raise UserError("--target-easy-share finds the threshold: leave it or --threshold out")
    if args.filter_data and not args.model:
        raise UserError("--filter-data is for training: name the base with --model")
    for flag, value in (
        ("--threshold", args.threshold),
        ("--target-easy-share", args.target_easy_share),
        ("--tau-easy", args.tau_easy),
        ("--keep", args.keep),
        ("--filter-share", args.filter_share),
    ):
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{flag} is {value}; write a number between 0 and 1")


def show(result: dict[str, Any]) -> None:
    if not result["predicted"]:
        print(f"{result['out']}: nothing to predict")
        return
    print(
        f"{result['out']}: {result['kept']} of {result['predicted']} transitions stay, {result['dropped']} easy ones are "
        f"left out; {result['easy_share']:.1%} are easy at a threshold of {result['threshold']:g}"
    )
    if result["trained_on"]:
        print(
            f"the filter model was trained on {result['trained_on']} transitions of other tasks, which are not in the result"
        )
    for mean, count in result["means"].items():
        print(f"  {float(mean):>4.0%} right {count:>8}")
    if result["failed"] or result["malformed"]:
        print(f"{result['failed']} predictions failed; {result['malformed']} outputs held none, and count as wrong")
    if result["alike"] == result["predicted"]:
        print(
            "each transition's predictions are all the same: was anything sampled? (transformers serve samples only if the "
            "model's generation_config.json has do_sample true)"
        )
