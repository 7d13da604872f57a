"""`wm env rollout NAME`: episodes as trajectories, by an expert, a wanderer, a model or a server."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.block import read_block
from wm_plugin.cli.data.support import progress, work_folder
from wm_plugin.cli.env import policy
from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows, simulated_world
from wm_plugin.errors import UserError

if TYPE_CHECKING:
    pass


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "rollout",
        help="episodes as trajectories, by an expert, a wanderer, a model or a server",
        description="Every episode is a trajectory in X, or a line of X.rejects.jsonl that says why not. A run that was killed "
        "continues where it was.",
    )
    parser.add_argument("name", metavar="NAME", help=NAME)
    parser.add_argument("--policy", required=True, help=policy.HELP)
    parser.add_argument("--count", type=int, required=True, metavar="N", help="how many tasks")
    parser.add_argument(
        "--per-task",
        type=int,
        default=1,
        metavar="N",
        help="episodes of each task, all with the task's id (default: 1)",
    )
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    add_row_arguments(parser)
    parser.add_argument(
        "--control",
        metavar="FILE",
        help="perturb what the agent observes: a file as for wm data control --config (a curriculum's factor is 1)",
    )
    parser.add_argument(
        "--verify",
        metavar="FILE",
        help="check irreversible actions by a world model before they go out: a file of the fields of VerifyConfig, such as "
        "{budget: 4, world_model: {url: http://localhost:8000/v1, model: NAME}} or {budget: 4, control: coin}, or with these "
        "under verify (docs/verify.md)",
    )
    parser.add_argument(
        "--simulation",
        metavar="FILE",
        help="play in a world model: a file of the fields of SimulationConfig, such as {url: http://localhost:8000/v1, "
        "model: NAME}, or with these under simulation (docs/simulation.md)",
    )
    policy.add_arguments(parser)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`tasks`, `episodes`, `success`, `turns`, `effective_share`, `invalid_share`, `lost`, `failed` by reason, `calls` by tool.

    What the environment's class does not say is null. With `--control`, `control` has how many calls there were under it, and how
    many of them each perturbation changed.
    With `--verify`, `verify` has the sums of `checks`, `refused`, `spent`, `unanswered` and `questions`.
    """
    from wm_plugin.data.write import check_outputs, path_of_rejects
    from wm_plugin.lab.agents.synthesize import Marked
    from wm_plugin.worlds.agents.collect import collect, remove_shards
    from wm_plugin.worlds.simulated_world import SimulatedWorld
    from wm_plugin.worlds.wrappers.control import ControlConfig

    for flag, value in (("--count", args.count), ("--per-task", args.per_task)):
        if value < 1:
            raise UserError(f"{flag} is {value}; write a number >= 1")
    policy.check(args)
    if args.count * args.per_task > MOST_ROWS:
        flags = (
            f"--count is {args.count}"
            if args.per_task == 1
            else f"--count times --per-task is {args.count * args.per_task}"
        )
        raise UserError(f"{flags}; write a number up to {MOST_ROWS:,}, and the rest with another --seed")
    out = Path(args.out)
    check_outputs(out, sources=[args.policy, *filter(None, (args.control, args.verify, args.simulation))])
    folder = work_folder(out, args.work)
    world = find(args.name)
    if args.simulation is not None:
        if args.verify is not None:
            raise UserError("--verify checks actions before a real world, and --simulation has none; leave one out")
        world = simulated_world(world, args.simulation)
    if args.control is not None:
        world = world.under(
            read_block(args.control, "--control", "control", partial(ControlConfig.read, where="control"))
        )
    if args.verify is not None:
        from wm_plugin.worlds.wrappers.verified import VerifiedWorld
        from wm_plugin.worlds.wrappers.verify_config import VerifyConfig

        config = read_block(args.verify, "--verify", "verify", partial(VerifyConfig.read, where="verify"))
        world = VerifiedWorld(world.spec, world.control, config=config)
        world.environment  # noqa: B018 - it says what does not fit
    player, server = policy.player(args, world)
    if isinstance(world, SimulatedWorld):
        player = Marked(player, world)
    columns = policy.columns(args.column, world)
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
        remove_shards(folder, args.count * args.per_task, args.shard_size)
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
    if checks := result.get("verify"):
        print(
            f"{checks['checks']} checks of irreversible actions, {checks['unanswered']} without an answer; {checks['refused']} "
            f"actions were refused, and {checks['spent']} came after the budget"
        )
    if result["failed"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in result["failed_by_reason"].items())
        print(f"{result['failed']} episodes have no trajectory ({reasons}): see {result['rejects']}")
    if control := result.get("control"):
        counts = ", ".join(f"{count} {name}" for name, count in control.items() if name != "calls")
        print(f"under control: {control['calls']} calls, of which {counts}")
    if result["lost"]:
        print(f"{result['lost']} episodes were lost with their process")
