"""`wm eval perplexity`: how well a model predicts general text, before and after a training."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.data.support import progress
from wm_plugin.cli.eval.lines import print_lines
from wm_plugin.errors import UserError


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "perplexity",
        help="how well a model predicts general text, before and after a training",
        description="Perplexity of the beginnings of documents (ECHO: 200 of at most 256 tokens). A document is a text file, or "
        "a row of JSON lines, JSON or parquet. Needs the model's own probabilities, so that it takes no server.",
    )
    parser.add_argument(
        "source", nargs="+", metavar="SRC", help="text files, files of rows with a text, or folders of these"
    )
    parser.add_argument("--model", required=True, metavar="PATH", help="the model, in this process")
    parser.add_argument(
        "--before", metavar="PATH", help="the model that it was trained from: adds the difference, paired by document"
    )
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="documents at most (default: 200)")
    parser.add_argument(
        "--tokens", type=int, default=256, metavar="N", help="longest document, in tokens (default: 256)"
    )
    parser.add_argument(
        "--windows",
        type=int,
        default=1,
        metavar="N",
        help="so many parts of --tokens tokens of a document (default: 1)",
    )
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="the field of a row that holds the text (default: text)"
    )
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="texts at once (default: 4)")
    parser.add_argument("--seed", type=int, metavar="N", help="take random documents (default: the first ones)")
    parser.add_argument("--out", metavar="DIR", help="write the measures and a row for each document there")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation: `perplexity` and `nll`; with --before those of both, `nll_difference` and `perplexity_ratio`."""
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.lab.evaluation import perplexity
    from wm_plugin.lab.evaluation.measures import open_folder, write_result, write_rows
    from wm_plugin.tokens.tokenizer import load_tokenizer

    for flag in ("limit", "tokens", "windows", "batch_size"):
        if getattr(args, flag) < (least := 2 if flag == "tokens" else 1):
            raise UserError(f"--{flag.replace('_', '-')} is {getattr(args, flag)}; write a number >= {least}")
    quiet()
    reader = perplexity.Reader(args.field)
    tokenizer = load_tokenizer(args.model, field="--model")
    documents = perplexity.drawn(progress(reader(args.source), "documents"), args.limit, args.seed)
    texts = perplexity.tokenized(tokenizer, documents, args.tokens, args.windows)
    if not texts.rows:
        raise UserError(f"{', '.join(args.source)}: no document has two tokens; name other texts")
    if args.before:
        other = load_tokenizer(args.before, field="--before")
        if perplexity.tokenized(other, documents, args.tokens, args.windows) != texts:
            raise UserError(
                "--before reads the texts in other tokens than --model, so that their perplexities cannot be compared"
            )
    data = ", ".join(args.source)
    folder = open_folder(args.out, "perplexity", args.model, data) if args.out else None
    before = _score(args.before, texts, args.batch_size) if args.before else None
    after = _score(args.model, texts, args.batch_size)
    if short := len(documents) - len(set(texts.documents)):
        reader.failures["less than two tokens"] += short
    names = ("before", "limit", "tokens", "windows", "field", "seed")
    settings = {name: getattr(args, name) for name in names}
    result = perplexity.evaluation(
        texts,
        after,
        before,
        subject=args.model,
        data=data,
        settings=settings,
        failures=reader.failures,
        seed=args.seed or 0,
    )
    if folder:
        write_rows(perplexity.rows(texts, after, before), folder)
        write_result(result, folder)
    return {**result.as_dict(), "ok": True}


def _score(model: str | Path, texts: Any, batch_size: int) -> Any:
    """The sums of a model, which is not kept: two at once would take twice the memory."""
    from wm_plugin.client.predict import load_model
    from wm_plugin.lab.evaluation.perplexity import score

    return score(load_model(model), texts.rows, batch_size=batch_size)


def show(result: dict[str, Any]) -> None:
    """Print the result of `run`."""
    print_lines(result)
