"""`wm data fictional`: invented worlds of a specification, as databases, pages, questions and rows to train on."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "fictional",
        help="invented worlds that no model knows: databases, pages, questions",
        description="Makes worlds of a specification: a SQLite database, pages that state its facts, questions with the tables "
        "that answer them, and the rows that train and evaluate agents on them in the world `fictional`.",
    )
    parser.add_argument(
        "--spec",
        required=True,
        metavar="FILE",
        help="bells, handsets, observatories, workshops, or your own: ./mine.yaml",
    )
    parser.add_argument("--count", type=int, default=1, metavar="N", help="worlds (default: 1)")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--levels",
        default="standard,hard-1,hard-2",
        metavar="LIST",
        help="levels of the questions (default: all three)",
    )
    parser.add_argument(
        "--questions", type=int, default=8, metavar="N", help="questions for each level and world (default: 8)"
    )
    parser.add_argument("--held-out", action="store_true", help="worlds that no training row is of")
    parser.add_argument("--seed", type=int, default=0)
    group = parser.add_argument_group("the closed-book baseline")
    group.add_argument(
        "--closed-book", metavar="URL", help="ask this server the questions, without tools; it should know nothing"
    )
    group.add_argument("--closed-book-model", metavar="NAME", help="the name under which the server has the model")
    group.add_argument(
        "--max-new-tokens", type=int, default=2048, metavar="N", help="longest answer, in tokens (default: 2048)"
    )
    group.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once (default: 32)")
    group.add_argument(
        "--no-seed", action="store_true", help="send the server no seeds (vLLM crashes on them on a CPU)"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`worlds`, `questions`, `out`; with a server `closed_book` (see `closed_book`), and `ok`: it knows nothing."""
    from wm_plugin.lab.synthesis.fictional import write

    if (args.closed_book is None) is not (args.closed_book_model is None):
        raise UserError("--closed-book URL and --closed-book-model NAME go together: give both or none")
    if args.max_new_tokens < 1:
        raise UserError(f"--max-new-tokens is {args.max_new_tokens}; write a number >= 1")
    answers = _answers(args) if args.closed_book else None
    levels = [level.strip() for level in args.levels.split(",") if level.strip()]
    out = Path(args.out)
    rows = write(
        args.spec, args.count, out, seed=args.seed, held_out=args.held_out, levels=levels, questions=args.questions
    )
    result: dict[str, Any] = {"out": str(out), "worlds": args.count, "questions": len(rows), "ok": True}
    if answers is not None:
        from wm_plugin.lab.synthesis.fictional import closed_book

        known = closed_book(answers, rows, seed=args.seed)
        result |= {"closed_book": known, "ok": not known["known"] and not known["failed"]}
    return result


def _answers(args: argparse.Namespace) -> Any:
    from wm_plugin.client.answers import Answers, ServerModel
    from wm_plugin.client.server import Server

    server = Server(
        args.closed_book,
        args.closed_book_model,
        concurrency=args.concurrency,
        timeout=600.0,
        temperature=0.0,
        max_tokens=args.max_new_tokens,
        seed=None if args.no_seed else "auto",
    )
    return Answers(ServerModel(server))


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['worlds']} worlds with {result['questions']} questions")
    if book := result.get("closed_book"):
        print(
            f"without tools: item F1 {book['item_f1']:.3f}, row F1 {book['row_f1']:.3f}; "
            f"{book['answered']} of {book['questions']} answers are tables"
        )
        if book["failed"]:
            print(f"the server failed for {book['failed']} questions")
        if book["known"]:
            print("the model knows the answers: questions or worlds are in what it was trained on")
