"""`wm env rollout NAME`: episodes as trajectories, by an expert, a wanderer, a model or a server."""

import argparse
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import progress, work_folder
from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows
from wm_plugin.errors import UserError, nearest, shown

if TYPE_CHECKING:
    from wm_plugin.agents.players import Player
    from wm_plugin.environments.worlds import World

LONGEST = 10_000_000  # seconds


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "rollout",
        help="episodes as trajectories, by an expert, a wanderer, a model or a server",
        description="Every episode is a trajectory in X, or a line of X.rejects.jsonl that says why not. A run that was killed "
        "goes on where it was.",
    )
    parser.add_argument("name", metavar="NAME", help=NAME)
    parser.add_argument(
        "--policy",
        required=True,
        help="random, expert, a folder with a model, or the URL of an OpenAI-compatible server like http://localhost:8000/v1",
    )
    parser.add_argument("--count", type=int, required=True, metavar="N", help="tasks, a row each")
    parser.add_argument(
        "--per-task", type=int, default=1, metavar="N", help="episodes of each task, under its one id (default: 1)"
    )
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    add_row_arguments(parser)
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a column that every row gets, such as user_model=NAME, which plays the customer of tau2 and dialogue (repeatable)",
    )
    parser.add_argument(
        "--control",
        metavar="FILE",
        help="perturbations of what the agent observes, by a file as for wm data control --config (a curriculum's factor is 1)",
    )
    parser.add_argument(
        "--sampling-seed",
        type=int,
        metavar="N",
        help="of what the policy draws (default: that of --seed): another one plays the same tasks anew",
    )
    parser.add_argument("--max-turns", type=int, metavar="N", help="of an episode; worlds end on their own, too")
    parser.add_argument(
        "--host", choices=("trl", "verl"), default="trl", help="whose words the agent hears of failed calls"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes, for random and expert (default: 1)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="that an episode may take before it is lost (default: 600 for random and expert, no limit otherwise)",
    )
    models = parser.add_argument_group("models")
    models.add_argument("--model", metavar="NAME", help="the name under which the server has the model")
    models.add_argument("--temperature", type=float, default=1.0)
    models.add_argument("--max-new-tokens", type=int, default=1024, metavar="N", help="of a turn (default: 1024)")
    models.add_argument("--batch-size", type=int, default=64, metavar="N", help="episodes at once, without a server")
    models.add_argument("--concurrency", type=int, default=32, metavar="N", help="episodes at once, with a server")
    models.add_argument(
        "--request-timeout", type=float, default=600.0, metavar="SECONDS", help="of an attempt (default: 600)"
    )
    models.add_argument(
        "--no-seed", action="store_true", help="send a server no seeds, of which vLLM on a CPU dies; runs then differ"
    )
    models.add_argument("--retries", type=int, default=4, metavar="N", help="after a failed attempt (default: 4)")
    parser.add_argument(
        "--work", metavar="DIR", help="folder of finished shards, to go on from (default: X.work, removed at the end)"
    )
    parser.add_argument("--shard-size", type=int, default=64, metavar="N", help="episodes that a kill loses, at most")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`tasks`, `episodes`, `success`, `turns`, `effective_share`, `invalid_share`, `lost`, `failed` by reason, `calls` by tool.

    What the environment's class does not say is null. With `--control`, `control` has how many calls there were under it, and how
    many of them each perturbation changed.
    """
    from wm_plugin.agents.collect import collect, remove_shards
    from wm_plugin.cli.data.control import load_config
    from wm_plugin.trajectories.write import check_outputs, path_of_rejects

    for flag, value in (
        ("--count", args.count),
        ("--per-task", args.per_task),
        ("--workers", args.workers),
        ("--max-turns", args.max_turns or 1),
    ):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    if args.count * args.per_task > MOST_ROWS:
        flags = (
            f"--count is {args.count}"
            if args.per_task == 1
            else f"--count times --per-task is {args.count * args.per_task}"
        )
        raise UserError(f"{flags}; write a number up to {MOST_ROWS:,}, and the rest with another --seed")
    if args.timeout is not None and not 0 < args.timeout <= LONGEST:
        raise UserError(f"--timeout is {args.timeout:g}; write seconds > 0, up to {LONGEST:,}")
    out = Path(args.out)
    check_outputs(out, sources=[args.policy, *([args.control] if args.control else [])])
    folder = work_folder(out, args.work)
    world = find(args.name)
    if args.control is not None:
        world = world.under(load_config(args.control, "--control"))
    player, server = _player(args, world)
    columns = _columns(args.column, world)
    tasks = [{**row, **columns} for row in rows(world, args, args.count)]
    if world.control is not None:
        world.control.check_columns(tasks[0], world.name)  # all rows of a world have the same
    summary = collect(
        world,
        [row for row in tasks for _ in range(args.per_task)],
        player,
        out,
        folder=folder,
        shard_size=args.shard_size,
        watch=lambda shards: progress(shards, f"shards of {args.shard_size} episodes"),
    ).as_dict()
    if args.work is None:
        remove_shards(folder, args.count, args.shard_size)
    figures = {"server": server.figures} if server else {}
    ok = summary["episodes"] > 0
    files = {"out": str(out), "rejects": str(path_of_rejects(out)) if summary["failed"] else None}
    return {
        "environment": world.name,
        "policy": args.policy,
        "tasks": args.count,
        **summary,
        **figures,
        **files,
        "ok": ok,
    }


def _columns(pairs: list[str], world: "World") -> dict[str, str | int]:
    """The values of `--column` by name; digits are a whole number.

    Raises:
        UserError: one is not NAME=VALUE, or the world's `reset` takes no such column.
    """
    parameters = list(inspect.signature(world.environment.reset).parameters.values())[1:]  # type: ignore[attr-defined]
    known = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    columns: dict[str, str | int] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--column is {shown(pair)}; write NAME=VALUE")
        if name not in known:
            raise UserError(f"--column: {world.name} takes no column {shown(name)}{nearest(name, known)}")
        columns[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else value
    return columns


def show(result: dict[str, Any]) -> None:
    shares = [
        f"{result[f'{name}_share']:.1%} {name}"
        for name in ("effective", "invalid")
        if result[f"{name}_share"] is not None
    ]
    parts = [
        "no success (the class has none)" if result["success"] is None else f"success {result['success']:.1%}",
        f"{result['turns']:.1f} turns",
    ]
    if result["actions"] is not None:
        parts.append(f"{result['actions']:.1f} actions" + (f" ({', '.join(shares)})" if shares else ""))
    several = result["episodes"] + result["failed"] > result["tasks"]
    tasks = f" ({result['tasks']} tasks)" if several else ""
    print(f"{result['out']}: {result['episodes']} episodes of {result['environment']}{tasks}; {', '.join(parts)}")
    if result["failed"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result["failed_by_reason"].items())
        print(f"{result['failed']} episodes have no trajectory ({reasons}): see {result['rejects']}")
    if control := result.get("control"):
        counts = ", ".join(f"{count} {name}" for name, count in control.items() if name != "calls")
        print(f"under control: {control['calls']} calls, of which {counts}")
    if result["lost"]:
        print(f"{result['lost']} episodes were lost with their process")


def _player(args: argparse.Namespace, world: "World") -> "tuple[Player, Any]":
    """The player of `--policy`, and its server if it is one."""
    from wm_plugin.agents.players import MAX_TURNS, SCRIPTED, LocalPlayer, ScriptedPlayer, ServerPlayer

    seed = args.seed if args.sampling_seed is None else args.sampling_seed
    common: dict[str, Any] = {"seed": seed, "max_turns": args.max_turns or MAX_TURNS, "host": args.host}
    if args.policy in SCRIPTED:
        timeout = 600.0 if args.timeout is None else args.timeout
        return ScriptedPlayer(world, args.policy, workers=args.workers, timeout=timeout, **common), None
    if args.policy.startswith(("http://", "https://")):
        from wm_plugin.runtime.server import Server

        if args.model is None:
            raise UserError("--policy is a server; name its model with --model")
        server = Server(
            args.policy,
            args.model,
            concurrency=args.concurrency,
            timeout=args.request_timeout,
            max_retries=args.retries,
            temperature=args.temperature,
            max_tokens=args.max_new_tokens,
            seed=None if args.no_seed else "auto",
        )
        return ServerPlayer(world, server, timeout=args.timeout, **common), server
    if "/" not in args.policy and not os.path.exists(args.policy):
        raise UserError(
            f"--policy {args.policy!r} is no folder with a model, and no URL{nearest(args.policy, SCRIPTED)}"
        )
    from wm_plugin.cli.data.predictor import quiet
    from wm_plugin.runtime.predict import LocalPredictor

    quiet()
    predictor = LocalPredictor(
        args.policy, temperature=args.temperature, max_new_tokens=args.max_new_tokens, batch_size=args.batch_size
    )
    return LocalPlayer(world, predictor, **common), None
