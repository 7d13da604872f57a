"""The flags that name an agent and say how it plays, for the steps that make episodes, and the player that they describe."""

import argparse
import inspect
import os
from typing import TYPE_CHECKING, Any

from wm_plugin.errors import UserError, nearest, shown

if TYPE_CHECKING:
    from wm_plugin.worlds.agents.players import Player
    from wm_plugin.worlds.worlds import World

LONGEST = 10_000_000  # seconds
HELP = "random, expert, a folder with a model, or the URL of an OpenAI-compatible server like http://localhost:8000/v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags beside `--policy`, `--seed` and `--out`, which each step explains itself."""
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a column that every row gets, such as user_model=NAME, which plays the customer of tau2 and dialogue (repeatable)",
    )
    parser.add_argument(
        "--sampling-seed",
        type=int,
        metavar="N",
        help="seed of the policy's sampling (default: --seed): with another one it plays the same tasks differently",
    )
    parser.add_argument(
        "--max-turns", type=int, metavar="N", help="longest episode, in turns; a world may end it earlier"
    )
    parser.add_argument(
        "--host",
        choices=("trl", "verl"),
        default="trl",
        help="which host's error messages the agent reads after a failed call",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes, for random and expert (default: 1)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="longest time for an episode, which is lost after it (default: 600 for random and expert, else no limit)",
    )
    models = parser.add_argument_group("models")
    models.add_argument("--model", metavar="NAME", help="the name under which the server has the model")
    models.add_argument("--temperature", type=float, default=1.0)
    models.add_argument(
        "--max-new-tokens",
        type=int,
        default=1024,
        metavar="N",
        help="longest turn of the policy, in tokens (default: 1024)",
    )
    models.add_argument("--batch-size", type=int, default=64, metavar="N", help="episodes at once, without a server")
    models.add_argument("--concurrency", type=int, default=32, metavar="N", help="episodes at once, with a server")
    models.add_argument(
        "--request-timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="longest time for a request (default: 600)",
    )
    models.add_argument(
        "--no-seed",
        action="store_true",
        help="send a server no seeds (vLLM crashes on them on a CPU); runs then differ",
    )
    models.add_argument(
        "--retries", type=int, default=4, metavar="N", help="attempts after one that failed (default: 4)"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="folder of finished shards, from which a killed run continues (default: X.work, removed at the end)",
    )
    parser.add_argument(
        "--shard-size",
        type=int,
        default=64,
        metavar="N",
        help="episodes in a shard: a killed run loses at most so many (default: 64)",
    )


def check(args: argparse.Namespace) -> None:
    """Check numbers before hours of work.

    Raises:
        UserError: one is out of its range.
    """
    for flag, value in (("--workers", args.workers), ("--max-turns", args.max_turns or 1)):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    if args.timeout is not None and not 0 < args.timeout <= LONGEST:
        raise UserError(f"--timeout is {args.timeout:g}; write seconds > 0, up to {LONGEST:,}")


def player(args: argparse.Namespace, world: "World") -> "tuple[Player, Any]":
    """The player of `--policy`, and its server if it is one.

    Raises:
        UserError: there is no such policy, or it cannot play in this world.
    """
    from wm_plugin.lab.agents.synthesize import wandering
    from wm_plugin.worlds.agents.players import MAX_TURNS, SCRIPTED, LocalPlayer, ScriptedPlayer, ServerPlayer
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.wrappers.verified import VerifiedWorld

    simulation = world.config if isinstance(world, SimulatedWorld) else None
    seed = args.seed if args.sampling_seed is None else args.sampling_seed
    common: dict[str, Any] = {"seed": seed, "max_turns": args.max_turns or MAX_TURNS, "host": args.host}
    if args.policy == "expert" and simulation is not None:
        raise UserError(
            "--policy expert looks into its environment, and in a world model there is nothing to look into; "
            "name a model, or random"
        )
    if args.policy == "random" and simulation is not None:
        return wandering(world, workers=args.workers, timeout=args.timeout, **common), None
    if args.policy in SCRIPTED:
        timeout = 600.0 if args.timeout is None else args.timeout
        return ScriptedPlayer(world, args.policy, workers=args.workers, timeout=timeout, **common), None
    if args.policy.startswith(("http://", "https://")):
        server = serve(args, args.policy, args.model)
        return ServerPlayer(world, server, timeout=args.timeout, **common), server
    asked = world.config.world_model if isinstance(world, VerifiedWorld) else simulation
    at_once = 1 if asked is None else asked.concurrency
    return LocalPlayer(world, predict(args, args.policy), at_once=at_once, **common), None


def serve(args: argparse.Namespace, url: str, model: str | None) -> Any:
    """The server of a policy.

    Raises:
        UserError: its model has no name.
    """
    from wm_plugin.client.server import Server

    if model is None:
        raise UserError("--policy is a server; name its model with --model")
    return Server(
        url,
        model,
        concurrency=args.concurrency,
        timeout=args.request_timeout,
        max_retries=args.retries,
        temperature=args.temperature,
        max_tokens=args.max_new_tokens,
        seed=None if args.no_seed else "auto",
    )


def predict(args: argparse.Namespace, path: str) -> Any:
    """The model of a policy, in this process.

    Raises:
        UserError: there is no such folder.
    """
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.client.predict import LocalPredictor
    from wm_plugin.worlds.agents.players import SCRIPTED

    if "/" not in path and not os.path.exists(path):
        raise UserError(f"--policy {path!r} is no folder with a model, and no URL{nearest(path, SCRIPTED)}")
    quiet()
    return LocalPredictor(
        path, temperature=args.temperature, max_new_tokens=args.max_new_tokens, batch_size=args.batch_size
    )


def columns(pairs: list[str], world: "World") -> dict[str, str | int]:
    """The values of `--column` by name; digits are a whole number.

    Raises:
        UserError: one is not NAME=VALUE, or the world's `reset` takes no such column.
    """
    parameters = list(inspect.signature(world.environment.reset).parameters.values())[1:]  # type: ignore[attr-defined]
    known = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    found: dict[str, str | int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--column is {shown(pair)}; write NAME=VALUE")
        if name not in known:
            raise UserError(f"--column: {world.name} takes no column {shown(name)}{nearest(name, known)}")
        found[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value
    return found
