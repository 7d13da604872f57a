"""`wm eval foresight`: does an agent foresee what comes of its actions, and how good are they; before and after a training."""

import argparse
from typing import Any

from wm_plugin.cli.data.support import progress
from wm_plugin.cli.eval import model as flags
from wm_plugin.cli.eval.lines import print_lines
from wm_plugin.errors import UserError

_EPILOG = """\
examples:
  wm eval foresight after.jsonl --before before.jsonl --out out/foresight --server http://localhost:8000/v1 --server-model NAME
  wm eval foresight after.jsonl --before before.jsonl --passive look examine    (without a judge: actions alone)
"""


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "foresight",
        help="does an agent foresee what comes of its actions, and how good are they",
        description="Accuracy of the explicit predictions in an agent's thinking, as a judge finds and compares them, and "
        "how often the agent corrects itself (Qwen-AgentWorld, sections 6.2 and 7.1); invalid and ineffective actions by kind "
        "(RWML, section 4.1). Without a judge, the actions alone.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SRC", help="the agent's trajectories, or any format that wm data convert reads"
    )
    parser.add_argument(
        "--before", metavar="FILE", help="those of before its training: adds differences, paired by task"
    )
    parser.add_argument(
        "--passive", nargs="+", default=[], metavar="WORD", help="commands that only look: ineffective, too"
    )
    parser.add_argument(
        "--invalid",
        nargs="+",
        default=[],
        metavar="REGEX",
        help="observations that answer an invalid action, beside ours",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N trajectories of each file")
    judge = flags.add_arguments(parser, "the judge", max_new_tokens=4096, batch_size=16)
    judge.add_argument("--temperature", type=float, default=0.0, help="(default: 0)")
    judge.add_argument(
        "--max-chars",
        type=int,
        default=100_000,
        metavar="N",
        help="longest text for the judge, in characters (default: 100000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the intervals, and of a judge that samples")
    parser.add_argument("--out", metavar="DIR", help="keeps the judge's replies, the measures and a row for each turn")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation: measures of SRC, those of --before (by "data"), and their differences."""
    from collections import Counter
    from pathlib import Path

    from wm_plugin.client.answers import Answers
    from wm_plugin.lab.evaluation import foresight
    from wm_plugin.lab.evaluation.measures import Evaluation, open_folder, write_result, write_rows
    from wm_plugin.lab.evaluation.paired import differences

    for flag, value in (("--limit", args.limit), ("--max-chars", args.max_chars)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    judge = _judge(args)
    folder = open_folder(args.out, "foresight", args.source, args.source) if args.out else None
    failures: Counter[str] = Counter()
    sets = {"after": args.source, **({"before": args.before} if args.before else {})}
    sums, rows = {}, []
    for name, source in sets.items():
        sums[name], turns = _read(source, args)
        if judge and turns:
            answers = Answers(judge, Path(folder) / "answers.jsonl" if folder else None)
            judged = foresight.judge(turns, answers, seed=args.seed, max_chars=args.max_chars)
            failures += foresight.add(sums[name], judged)
            rows += [{"data": name, **one.as_row()} for one in judged]
    measures = sums["after"].measures(seed=args.seed)
    notes = [] if judge else ["no judge was named, so that nothing is said of predictions and corrections"]
    if args.before:
        measures += sums["before"].measures(by="data", group="before", seed=args.seed)
        compared = differences(sums["after"], sums["before"], seed=args.seed)
        if not compared:
            notes.append("the two files have fewer than two tasks in common, so that nothing is compared")
        measures += compared
    names = ("before", "passive", "invalid", "limit", "max_chars", "seed")
    settings = {name: getattr(args, name) for name in names} | {"judge": judge.settings if judge else None}
    result = Evaluation("foresight", args.source, args.source, settings, measures, dict(failures), notes)
    if folder:
        write_rows(rows, folder)
        write_result(result, folder)
    return {**result.as_dict(), "ok": bool(measures)}


def _judge(args: argparse.Namespace) -> Any:
    """The judge that the flags name; None without one."""
    if not (args.model or args.server or args.server_model):
        return None
    flags.check(args)
    return flags.make(args)


def _read(source: str, args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The sums of a file's actions, and its turns for the judge."""
    from itertools import islice

    from wm_plugin.data.readers import read
    from wm_plugin.data.transitions import identity
    from wm_plugin.lab.evaluation import actions, foresight
    from wm_plugin.lab.evaluation.paired import Sums

    sums, turns = Sums(), list[foresight.Case]()
    passive = {word.lower() for word in args.passive}
    for trajectory in progress(islice(read(source), args.limit), "trajectories"):
        task = trajectory.task_id or identity(trajectory)
        actions.add(sums, task, actions.quality(trajectory, passive=passive, invalid=args.invalid))
        turns += foresight.cases(trajectory, sums, task)
    return sums, turns


def show(result: dict[str, Any]) -> None:
    """Print the result of `run`."""
    print_lines(result)
