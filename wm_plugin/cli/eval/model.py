"""The flags that name the model of an evaluation, and the model that they describe."""

import argparse
from typing import Any

from wm_plugin.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="PATH", help="the model, in this process")
    group.add_argument("--server", metavar="URL", help="or behind an OpenAI-compatible server")
    group.add_argument("--server-model", metavar="NAME", help="the name under which the server has it")
    group.add_argument("--max-new-tokens", type=int, default=1024, metavar="N", help="of an output (default: 1024)")
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="outputs at once, without a server")
    group.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once, to a server")
    parser.set_defaults(temperature=0.0, no_seed=False, shard_size=1)


def check(args: argparse.Namespace) -> None:
    """Check before hours of work that one model is named, and that numbers are positive.

    Raises:
        UserError: a flag does not fit.
    """
    from wm_plugin.cli.data import predictor
    from wm_plugin.tokens.tokenizer import is_missing_folder

    predictor.check(args, {"--model": args.model})
    if args.model and is_missing_folder(args.model):
        raise UserError(f"--model {args.model}: there is no such folder")
    if getattr(args, "limit", None) is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}; write a number >= 1")


def make(args: argparse.Namespace) -> Any:
    """The model that the flags describe, for `samples.answers.Answers`."""
    from wm_plugin.cli.data import predictor
    from wm_plugin.samples.answers import LocalModel, ServerModel

    made = predictor.make(args, args.model, thinking=False)
    return LocalModel(made) if args.model else ServerModel(made.server)
