"""The flags that name the model which an evaluation asks, a world model or a judge, and the model that they describe."""

import argparse
from typing import Any

from wm_plugin.errors import UserError


def add_arguments(
    parser: argparse.ArgumentParser,
    title: str = "the world model",
    *,
    max_new_tokens: int = 1024,
    batch_size: int = 64,
    at_once: str = "requests at once, to a server",
) -> Any:
    """Add the flags, and give their group for those that only one step has.

    The temperature is 0, and servers are sent seeds; a step with a flag for either adds it after this.

    Args:
        title: who is asked, over the flags.
        max_new_tokens, batch_size: the defaults.
        at_once: what --concurrency says.
    """
    group = parser.add_argument_group(title)
    group.add_argument(
        "--model", metavar="PATH", help="a model's folder, or its name on the Hub, to run in this process"
    )
    group.add_argument("--server", metavar="URL", help="or behind an OpenAI-compatible server")
    group.add_argument("--server-model", metavar="NAME", help="the name under which the server has it")
    group.add_argument(
        "--max-new-tokens",
        type=int,
        default=max_new_tokens,
        metavar="N",
        help=f"longest output, in tokens (default: {max_new_tokens})",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        default=batch_size,
        metavar="N",
        help=f"outputs at once, without a server (default: {batch_size})",
    )
    group.add_argument("--concurrency", type=int, default=32, metavar="N", help=f"{at_once} (default: 32)")
    parser.set_defaults(temperature=0.0, no_seed=False, shard_size=1)
    return group


def check(args: argparse.Namespace, others: dict[str, Any] | None = None) -> None:
    """Check before hours of work that one model is named, and that numbers are positive.

    Args:
        others: flags of the step that take the place of a model, with their values.

    Raises:
        UserError: a flag does not fit.
    """
    from wm_plugin.cli.data import predictor
    from wm_plugin.tokens.tokenizer import is_missing_folder

    predictor.check(args, {"--model": args.model, **(others or {})})
    if args.model and is_missing_folder(args.model):
        raise UserError(f"--model {args.model}: there is no such folder")
    if getattr(args, "limit", None) is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}; write a number >= 1")


def make(args: argparse.Namespace) -> Any:
    """The model that the flags describe, for `samples.answers.Answers`."""
    from wm_plugin.cli.data import predictor
    from wm_plugin.client.answers import LocalModel, ServerModel

    made = predictor.make(args, args.model, thinking=False)
    return LocalModel(made) if args.model else ServerModel(made.server)
