"""`wm data scenarios`: variants of seed scenarios along two axes, each with what must hold at the end (Qwen-AgentWorld)."""

import argparse
from pathlib import Path
from typing import Any

from wm_plugin.cli.data.support import work_folder
from wm_plugin.errors import UserError, nearest

_VERIFY = ("rubric", "rule")


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "scenarios",
        help="many tasks of a few: variants of the state and of the query",
        description="A server writes variants of each seed scenario's initial state and query, and a rubric or a rule for each. "
        "Seeds are a file (one JSON object a line: docs/fictional.md), recorded trajectories, or rows of a world. A run that was "
        "killed asks nothing twice.",
    )
    parser.add_argument(
        "source",
        metavar="SEEDS",
        help="a .jsonl file of scenarios or of trajectories, or the name of a world: sql, shop, ...",
    )
    parser.add_argument("--out", required=True, metavar="X.jsonl", help="the scenarios")
    parser.add_argument(
        "--work", metavar="DIR", help="keeps answers, to go on from (default: X.work beside X); remove it afterwards"
    )
    parser.add_argument("--count", type=int, default=10, metavar="N", help="seeds of a world (default: 10)")
    parser.add_argument("--states", type=int, default=3, metavar="N", help="variants of a seed's state (default: 3)")
    parser.add_argument(
        "--queries", type=int, default=3, metavar="N", help="variants of a query, in each state (default: 3)"
    )
    parser.add_argument(
        "--verify", default="rubric", help="rubric (default), for a judge, or rule, on the agent's answer"
    )
    parser.add_argument("--seed", type=int, default=0)
    group = parser.add_argument_group("who writes them")
    group.add_argument("--server", required=True, metavar="URL", help="an OpenAI-compatible server, with /v1")
    group.add_argument(
        "--server-model", required=True, metavar="NAME", help="the name under which the server has the model"
    )
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    group.add_argument(
        "--max-new-tokens", type=int, default=8192, metavar="N", help="longest reply, in tokens (default: 8192)"
    )
    group.add_argument("--concurrency", type=int, default=32, metavar="N", help="requests at once (default: 32)")
    group.add_argument(
        "--no-seed", action="store_true", help="send the server no seeds (vLLM crashes on them on a CPU)"
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`seeds`, `scenarios`, `dropped` by reason, `asked` of the server in this run, and `out`."""
    from wm_plugin.client.answers import Answers, ServerModel
    from wm_plugin.client.server import Server
    from wm_plugin.data.outputs import check_apart, check_out
    from wm_plugin.lab.synthesis import scenarios
    from wm_plugin.worlds.scenarios import MOST

    if args.verify not in _VERIFY:
        raise UserError(f"--verify: there is no {args.verify!r}{nearest(args.verify, _VERIFY)}")
    for flag, value, least in (
        ("--count", args.count, 1),
        ("--states", args.states, 0),
        ("--queries", args.queries, 0),
        ("--max-new-tokens", args.max_new_tokens, 1),
    ):
        if not least <= value <= 10**6:
            raise UserError(f"{flag} is {value}; write a number from {least} to 1,000,000")
    out = Path(args.out)
    kept = work_folder(out, args.work) / "answers.jsonl"
    check_out(out, (".jsonl",))
    check_apart([args.source], {"--out": out, "--work": kept})
    seeds = _seeds(args)
    most = len(seeds) * (args.states + 1) * (args.queries + 1)
    if most > MOST:
        raise UserError(f"{len(seeds)} seeds would make {most:,} scenarios; {MOST:,} are the most of a file")
    server = Server(
        args.server,
        args.server_model,
        concurrency=args.concurrency,
        timeout=600.0,
        temperature=args.temperature,
        max_tokens=args.max_new_tokens,
        seed=None if args.no_seed else "auto",
    )
    report = scenarios.Report()
    with Answers(ServerModel(server), kept) as answers:
        made = scenarios.expanded(
            seeds,
            answers,
            states=args.states,
            queries=args.queries,
            verify=args.verify,
            seed=args.seed,
            report=report,
        )
    if not made:
        raise UserError(f"no scenario is left to write; dropped: {_reasons(report.as_dict())}")
    scenarios.write(made, out)
    return {**report.as_dict(), "asked": answers.asked, "out": str(out)}


def _seeds(args: argparse.Namespace) -> Any:
    from wm_plugin.cli.steps import search_here
    from wm_plugin.data.schema import Trajectory
    from wm_plugin.data.write import holds
    from wm_plugin.lab.synthesis import scenarios
    from wm_plugin.worlds.scenarios import read
    from wm_plugin.worlds.worlds import load

    if args.source.endswith(".jsonl") or Path(args.source).exists():
        return _of_trajectories(args.source) if holds(Path(args.source), Trajectory.model_fields) else read(args.source)
    search_here()
    world = load(args.source)
    if missing := world.missing():
        raise UserError(f"{args.source} needs {' and '.join(missing)}")
    return scenarios.of_world(world, world.rows(args.count, seed=args.seed))


def _of_trajectories(source: str) -> Any:
    from wm_plugin.data.readers import read
    from wm_plugin.lab.synthesis import scenarios

    if not (seeds := scenarios.of_trajectories(read(source))):
        raise UserError(f"{source}: no trajectory says what the agent was asked")
    return seeds


def _reasons(result: dict[str, Any]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(result["dropped"].items())) or "none"


def show(result: dict[str, Any]) -> None:
    print(f"{result['out']}: {result['scenarios']} scenarios of {result['seeds']} seeds; dropped: {_reasons(result)}")
