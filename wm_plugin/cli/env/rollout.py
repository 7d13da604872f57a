"""`wm env rollout`."""

from pathlib import Path
from typing import Any

from wm_plugin.cli.flags import PolicyFlags, RowFlags, WorkFlags
from wm_plugin.cli.numbers import MAX_ROWS, Count
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, progress, read_block, simulated_world, work_folder
from wm_plugin.data.write import check_outputs, path_of_rejects
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.synthesize import Marked
from wm_plugin.worlds.agents.collect import collect, remove_shards
from wm_plugin.worlds.simulated_world import SimulatedWorld
from wm_plugin.worlds.wrappers.control import ControlConfig
from wm_plugin.worlds.wrappers.verified import VerifiedWorld
from wm_plugin.worlds.wrappers.verify_config import VerifyConfig


def show(result: dict[str, Any]) -> None:
    shares = {name: result[f"{name}_share"] for name in ("effective", "invalid")}
    told = ", ".join(f"{value:.1%} {name}" for name, value in shares.items() if value is not None)
    parts = []
    if result["episodes"]:
        parts = ["no success (the class has none)" if result["success"] is None else f"success {result['success']:.1%}"]
        parts.append(f"{result['turns']:.1f} turns")
    if result["actions"] is not None:
        parts.append(f"{result['actions']:.1f} actions" + (f" ({told})" if told else ""))
    several = result["episodes"] + result["failed"] > result["tasks"]
    tasks = f" ({result['tasks']} tasks)" if several else ""
    print(
        f"{result['out']}: {result['episodes']} episodes of {result['environment']}{tasks}{'; ' * bool(parts)}{', '.join(parts)}"
    )
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


@prints(show)
def rollout(
    name: str,
    /,
    *,
    policy: PolicyFlags,
    count: Count,
    out: str,
    per_task: Count = 1,
    rows: RowFlags = RowFlags(),
    control: str | None = None,
    verify: str | None = None,
    simulation: str | None = None,
    work: WorkFlags = WorkFlags(shard_size=64),
) -> dict[str, Any]:
    """Play episodes as trajectories: by an expert, a wanderer, a model or a server.

    Every episode is a trajectory in X, or a line of X.rejects.jsonl that says why not. A run that was killed continues where
    it was.

    As JSON: `tasks`, `episodes`, `success`, `turns`, `effective_share`, `invalid_share`, `lost`, `failed` by reason, `calls` by
    tool; null is what the world's class does not say. With --control, how many calls each perturbation changed; with
    --verify, the sums of `checks`, `refused`, `spent`, `unanswered` and `questions`.

    Args:
        name: A world by name, package.module:Class or openenv:http://host:port; with --simulation also a file of tools
            (docs/agentworld.md).
        count: How many tasks.
        out: X.jsonl or X.parquet.
        per_task: Episodes of each task, all with the task's id.
        control: Perturb what the agent observes: a file as for wm lab control --config (a curriculum's factor is 1).
        verify: Check irreversible actions by a world model before they go out: a file, or JSON, of the fields of VerifyConfig,
            such as {budget: 4, world_model: {url: http://localhost:8000/v1, model: NAME}}, or with these under verify.
        simulation: Play in a world model: a file, or JSON, of the fields of SimulationConfig, such as {url:
            http://localhost:8000/v1, model: NAME}, or with these under simulation.
    """
    if count * per_task > MAX_ROWS:
        flags = f"--count is {count}" if per_task == 1 else f"--count times --per-task is {count * per_task}"
        raise UserError(f"{flags}; write a number up to {MAX_ROWS:,}, and the rest with another --seed")
    path = Path(out)
    check_outputs(path, sources=[policy.policy, *filter(None, (control, verify, simulation))])
    folder = work_folder(path, work.work)
    world = find(name)
    if simulation is not None:
        if verify is not None:
            raise UserError("--verify checks actions before a real world, and --simulation has none; leave one out")
        world = simulated_world(world, simulation)
    if control is not None:
        world = world.under(read_block(control, "--control", "control", ControlConfig))
    if verify is not None:
        config = read_block(verify, "--verify", "verify", VerifyConfig)
        world = VerifiedWorld(world.spec, world.control, config=config)
        world.environment  # noqa: B018 - it says what does not fit
    player, server = policy.player(world, rows.seed)
    if isinstance(world, SimulatedWorld):
        player = Marked(player, world)
    columns = policy.columns(world)
    tasks = [{**row, **columns} for row in rows.rows(world, count, policy.max_turns)]
    if world.control is not None:
        world.control.check_columns(tasks[0], world.name)  # all rows of a world have the same
    summary = collect(
        world,
        [row for row in tasks for _ in range(per_task)],
        player,
        path,
        folder=folder,
        shard_size=work.shard_size,
        watch=lambda shards: progress(shards, f"shards of {work.shard_size} episodes"),
    ).as_dict()
    if work.work is None:
        remove_shards(folder, count * per_task, work.shard_size)
    return {
        "environment": world.name,
        "policy": policy.policy,
        "tasks": count,
        **summary,
        **({"server": server.figures} if server else {}),
        "out": out,
        "rejects": str(path_of_rejects(path)) if summary["failed"] else None,
        "ok": summary["episodes"] > 0,
    }
