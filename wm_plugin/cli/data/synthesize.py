"""`wm data synthesize WORLD`: trajectories of an agent in a world model, the successful ones kept (Word2World)."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wm_plugin.cli.data.support import progress, work_folder
from wm_plugin.cli.env import policy
from wm_plugin.cli.env.support import MOST_ROWS, NAME, add_row_arguments, find, rows, simulated_world
from wm_plugin.errors import UserError, nearest

if TYPE_CHECKING:
    from wm_plugin.worlds.simulated_world import SimulatedWorld

_KEEP = ("success", "all")
_TRIES = 10  # attempts for each trajectory that is asked for, at most


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "synthesize",
        help="trajectories of an agent in a world model, the successful ones kept",
        description="An agent (--policy) plays tasks of a world in a world model (--simulation) until --count successful "
        "trajectories are there. For the real half of a mixture: wm env rollout, with the same flags of the agent; then wm data "
        "mix. A run that was killed goes on where it was.",
    )
    parser.add_argument("name", metavar="WORLD", help=NAME)
    parser.add_argument("--policy", required=True, help=policy.HELP.replace("random, expert", "the agent: random"))
    parser.add_argument(
        "--simulation",
        required=True,
        metavar="FILE",
        help="YAML that names the world model and says what a success is: the fields of `simulation`, or that block",
    )
    parser.add_argument("--count", type=int, required=True, metavar="N", help="trajectories to keep")
    parser.add_argument("--keep", default="success", help="success (default), or all: failed episodes, too")
    parser.add_argument(
        "--most", type=int, metavar="N", help=f"play at most N episodes (default: {_TRIES} times --count)"
    )
    parser.add_argument(
        "--tasks", type=int, metavar="N", help="how many tasks, which are tried in turn (default: as many as --count)"
    )
    parser.add_argument("--out", required=True, help="X.jsonl or X.parquet")
    add_row_arguments(parser)
    parser.add_argument("--scenarios", metavar="FILE", help="rows of wm data scenarios in the place of the world's own")
    policy.add_arguments(parser)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`played`, `attempts` (of these, up to the one that completed the file), `kept`, `left_out` by reason, `success` (the share
    of attempts), `turns` (a kept one), `tasks` among the kept, and what the world model was asked by all. `ok` is false if there
    are fewer than --count.
    """
    from wm_plugin.data.write import check_outputs, path_of_rejects
    from wm_plugin.lab.agents.synthesize import synthesize
    from wm_plugin.worlds.agents.collect import remove_shards

    if args.keep not in _KEEP:
        raise UserError(f"--keep is {args.keep!r}{nearest(args.keep, _KEEP)}")
    most = args.count * _TRIES if args.most is None else args.most
    tasks = args.count if args.tasks is None else args.tasks
    for flag, value in (("--count", args.count), ("--most", most), ("--tasks", tasks)):
        if not 1 <= value <= MOST_ROWS:
            raise UserError(f"{flag} is {value}; write a number from 1 to {MOST_ROWS:,}")
    if most < args.count:
        raise UserError(f"--most is {most}, which is less than --count ({args.count})")
    policy.check(args)
    out = Path(args.out)
    rejects = check_outputs(out, sources=[args.policy, args.simulation, args.scenarios])
    folder = work_folder(out, args.work)
    world = simulated_world(find(args.name), args.simulation)
    chosen = _rows(args, world, min(tasks, most))
    player, server = policy.player(args, world)
    attempts = [chosen[number % len(chosen)] for number in range(most)]
    report = synthesize(
        world,
        attempts,
        player,
        out,
        count=args.count,
        keep=args.keep,
        folder=folder,
        shard_size=args.shard_size,
        watch=lambda shards: progress(shards, f"shards of {args.shard_size} episodes"),
    )
    if args.work is None:
        remove_shards(folder, most, args.shard_size)
    return {
        "environment": world.name,
        "policy": args.policy,
        **report.as_dict(),
        **({"server": server.figures} if server else {}),
        "out": str(out),
        "rejects": str(path_of_rejects(out)) if rejects.exists() else None,
        "ok": report.kept == args.count,
    }


def _rows(args: argparse.Namespace, world: "SimulatedWorld", count: int) -> list[dict[str, Any]]:
    from wm_plugin.worlds import scenarios

    if world.config.scenarios is not (args.scenarios is not None):
        raise UserError("--scenarios FILE and `scenarios: true` in the simulation go together; write both or neither")
    if args.scenarios is None:
        made = rows(world, args, count)
    else:
        made = scenarios.dataset_rows(count, args.seed, args.held_out, path=args.scenarios)
    columns = policy.columns(args.column, world)
    return [{**row, **columns} for row in made]


def show(result: dict[str, Any]) -> None:
    share = "" if result["success"] is None else f", success {result['success']:.1%} by the simulation"
    turns = "" if result["turns"] is None else f", {result['turns']:.1f} turns"
    print(
        f"{result['out']}: {result['kept']} synthetic trajectories of {result['environment']} ({result['tasks']} tasks{turns}); "
        f"{result['played']} were played, of which {result['attempts']} until these were there{share}"
    )
    if result["left_out"]:
        print("left out: " + ", ".join(f"{count} {reason}" for reason, count in result["left_out"].items()))
    if result["rejects"]:
        print(f"episodes without a trajectory: see {result['rejects']}")
    if not result["ok"]:
        print("fewer than --count: raise --most, or take more --tasks")
