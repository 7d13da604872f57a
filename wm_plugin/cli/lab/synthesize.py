"""`wm lab synthesize`."""

from pathlib import Path
from typing import Any, Literal

from wm_plugin.cli.flags import PolicyFlags, RowFlags, WorkFlags, WorldName
from wm_plugin.cli.numbers import RowCount
from wm_plugin.cli.support import find, progress, simulated_world, work_folder
from wm_plugin.data.write import check_outputs, path_of_rejects
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.synthesize import synthesize as play
from wm_plugin.worlds.agents.collect import remove_shards
from wm_plugin.worlds.scenarios import dataset_rows

_TRIES = 10  # attempts for each trajectory that is asked for, at most


def synthesize(
    name: WorldName,
    /,
    *,
    policy: PolicyFlags,
    simulation: str,
    count: RowCount,
    out: Path,
    keep: Literal["success", "all"] = "success",
    most: RowCount | None = None,
    tasks: RowCount | None = None,
    rows: RowFlags = RowFlags(),
    scenarios: str | None = None,
    work: WorkFlags = WorkFlags(shard_size=64),
) -> dict[str, Any]:
    """Collect trajectories of an agent in a world model, and keep the successful ones (Word2World).

    An agent plays tasks of a world in a world model until enough successful trajectories are there. For the real half of a
    mixture: wm env rollout, with the same flags of the agent; then wm lab mix. A run that was killed continues where it was.

    As JSON: `played`, `attempts` (of these, up to the one that completed the file), `kept`, `left_out` by reason, `success` (the
    share of attempts), `turns` (a kept one), `tasks` among the kept, and what the world model was asked by all.

    Args:
        simulation: The world model, and what a success is: a YAML file, or JSON, of the fields of SimulationConfig.
        count: Trajectories to keep.
        out: X.jsonl or X.parquet.
        keep: success, or all: failed episodes, too.
        most: Play at most so many episodes (default: 10 times --count).
        tasks: How many tasks, which are tried in turn (default: as many as --count).
        scenarios: Rows of wm lab scenarios in the place of the world's own.
    """
    most = count * _TRIES if most is None else most
    if most < count:
        raise UserError(f"--most is {most}, which is less than --count ({count})")
    rejects = check_outputs(out, sources=[policy.policy, simulation, scenarios])
    folder = work_folder(out, work.work)
    world = simulated_world(find(name), simulation)
    if world.config.scenarios is not (scenarios is not None):
        raise UserError("--scenarios FILE and `scenarios: true` in the simulation go together; write both or neither")
    wanted = min(count if tasks is None else tasks, most)
    if scenarios is None:
        chosen = rows.rows(world, wanted, policy.max_turns)
    else:
        chosen = dataset_rows(wanted, rows.seed, rows.held_out, path=scenarios)
    columns = policy.columns(world)
    chosen = [{**row, **columns} for row in chosen]
    player, server = policy.player(world, rows.seed)
    report = play(
        world,
        [chosen[number % len(chosen)] for number in range(most)],
        player,
        out,
        count=count,
        keep=keep,
        folder=folder,
        shard_size=work.shard_size,
        watch=lambda shards: progress(shards, f"shards of {work.shard_size} episodes"),
    )
    if work.work is None:
        remove_shards(folder, most, work.shard_size)
    enough = report.kept == count
    return {
        "environment": world.name,
        "policy": policy.policy,
        **report.as_dict(),
        **({"server": server.figures} if server else {}),
        "out": str(out),
        "rejects": str(path_of_rejects(out)) if rejects.exists() else None,
        "notes": [] if enough else ["fewer than --count: raise --most, or take more --tasks"],
        "ok": enough,
    }
