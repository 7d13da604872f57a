"""`wm lab scenarios`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from wm_plugin.cli.flags import ModelFlags
from wm_plugin.cli.lab.flags import Work
from wm_plugin.cli.numbers import bounds
from wm_plugin.cli.support import find, work_folder
from wm_plugin.client.answers import Answers
from wm_plugin.data.outputs import check_apart, check_out
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Trajectory
from wm_plugin.data.write import holds
from wm_plugin.errors import UserError
from wm_plugin.lab.synthesis import scenarios as room
from wm_plugin.worlds.scenarios import MOST
from wm_plugin.worlds.scenarios import read as read_scenarios

Variants = Annotated[int, bounds(0, 1_000_000)]


def scenarios(
    source: str,
    /,
    *,
    out: Path,
    writer: ModelFlags = ModelFlags(temperature=1.0, max_new_tokens=8192),
    count: Annotated[int, bounds(1, 1_000_000)] = 10,
    states: Variants = 3,
    queries: Variants = 3,
    verify: Literal["rubric", "rule"] = "rubric",
    work: Work = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Make many tasks of a few: variants of the state and of the query (Qwen-AgentWorld).

    A model writes variants of each seed scenario's initial state and query, and a rubric or a rule for each. Seeds are a file
    (one JSON object a line: docs/agentworld.md), recorded trajectories, or rows of a world. A run that was killed asks nothing
    twice.

    As JSON: `seeds`, `scenarios`, `dropped` by reason, `asked` of the model in this run, and `out`.

    Args:
        source: A .jsonl file of scenarios or of trajectories, or the name of a world: sql, shop, ...
        out: X.jsonl, the scenarios.
        count: Seeds of a world.
        states: Variants of a seed's state.
        queries: Variants of a query, in each state.
        verify: What is checked at the end: rubric, for a judge, or rule, on the agent's answer.
        seed: Seed of what is asked.
    """
    writer.check()
    kept = work_folder(out, work) / "answers.jsonl"
    check_out(out, (".jsonl",))
    check_apart([source], {"--out": out, "--work": kept})
    seeds = _seeds(source, count, seed)
    most = len(seeds) * (states + 1) * (queries + 1)
    if most > MOST:
        raise UserError(f"{len(seeds)} seeds would make {most:,} scenarios; {MOST:,} are the most of a file")
    report = room.Report()
    with Answers(writer.asked(), kept) as answers:
        made = room.expanded(seeds, answers, states=states, queries=queries, verify=verify, seed=seed, report=report)
    if not made:
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.as_dict()["dropped"].items()))
        raise UserError(f"no scenario is left to write; dropped: {dropped or 'none'}")
    room.write(made, out)
    return {**report.as_dict(), "asked": answers.asked, "out": str(out)}


def _seeds(source: str, count: int, seed: int) -> Any:
    if not source.endswith(".jsonl") and not Path(source).exists():
        world = find(source)
        return room.of_world(world, world.rows(count, seed=seed))
    if not holds(Path(source), Trajectory.model_fields):
        return read_scenarios(source)
    if not (seeds := room.of_trajectories(read(source))):
        raise UserError(f"{source}: no trajectory says what the agent was asked")
    return seeds
