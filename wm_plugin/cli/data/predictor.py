"""The flags of the steps that ask a model for predictions (`easy`, `best`), and the predictor that they describe."""

import argparse
import sys
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("predictions")
    group.add_argument("--server", metavar="URL", help="an OpenAI-compatible server, like http://localhost:8000/v1")
    group.add_argument("--server-model", metavar="NAME", help="the name under which the server has the model")
    group.add_argument("--temperature", type=float, default=1.0)
    group.add_argument(
        "--max-new-tokens", type=int, default=1024, metavar="N", help="longest output, in tokens (default: 1024)"
    )
    group.add_argument("--batch-size", type=int, default=64, metavar="N", help="outputs at once, without a server")
    group.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once, to a server")
    group.add_argument(
        "--no-seed",
        action="store_true",
        help="send a server no seeds (vLLM crashes on them on a CPU); runs then differ",
    )
    group.add_argument(
        "--work",
        metavar="DIR",
        help="keeps what is done, to go on from (default: X.work beside X); remove it afterwards",
    )
    group.add_argument(
        "--shard-size", type=int, default=256, metavar="N", help="transitions that a kill loses, at most"
    )


def check(args: argparse.Namespace, models: dict[str, Any]) -> None:
    """Check before hours of work that one model is named, in one way, and that numbers are positive.

    Args:
        models: the step's own flags that name a model, with their values.

    Raises:
        UserError: a flag does not fit.
    """
    named = [flag for flag, value in {**models, "--server": args.server}.items() if value]
    if len(named) != 1:
        raise UserError(
            f"name one model: {', '.join(models)} or --server" + (f"; not {' and '.join(named)}" if named else "")
        )
    if (args.server is None) is not (args.server_model is None):
        raise UserError("--server URL and --server-model NAME go together: give both or none")
    for flag, value in (("--shard-size", args.shard_size), ("--max-new-tokens", args.max_new_tokens)):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")


def make(args: argparse.Namespace, model: str | Path | None, *, thinking: bool) -> Any:
    """The predictor that the flags describe.

    Args:
        model: a model for this process; None uses the server.
    """
    from wm_plugin.client.predict import LocalPredictor, ServerPredictor
    from wm_plugin.client.server import Server

    if model is None:
        server = Server(
            args.server,
            args.server_model,
            concurrency=args.concurrency,
            timeout=600.0,
            temperature=args.temperature,
            max_tokens=args.max_new_tokens,
            seed=None if args.no_seed else "auto",
        )
        return ServerPredictor(server, thinking=thinking)
    quiet()
    return LocalPredictor(
        model, temperature=args.temperature, max_new_tokens=args.max_new_tokens, batch_size=args.batch_size
    )


def quiet() -> None:
    """Turn off the progress bars of transformers unless stderr is a terminal."""
    if not sys.stderr.isatty():
        try:
            from transformers.utils.logging import disable_progress_bar
        except ModuleNotFoundError:
            return
        disable_progress_bar()
