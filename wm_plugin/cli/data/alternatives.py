"""`wm data alternatives TRAJ`: what an expert's actions and others in the same states bring about (RWML's baseline IWM)."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wm_plugin.cli.data import proposals
from wm_plugin.cli.data.support import progress
from wm_plugin.data.schema import Transition
from wm_plugin.errors import UserError


def add_parser(steps: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = steps.add_parser(
        "alternatives",
        help="what an expert's actions, and others in the same states, bring about",
        description="Plays each of an expert's trajectories again, tries other actions in each of its states, and writes the "
        "transitions of all of them. wm data build --as rwml-sft makes rows of them; with the expert's own turns (--as "
        "imitation), which wm data mix adds, they are the data of implicit world modelling.",
    )
    proposals.add_arguments(parser)
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """`trajectories` read, `transitions` written, of which `expert` and `alternative`, and `left_out` by reason."""
    from wm_plugin.data.outputs import check_apart, check_out
    from wm_plugin.data.readers import read
    from wm_plugin.data.write import write_transitions
    from wm_plugin.lab.agents.alternatives import iwm
    from wm_plugin.lab.agents.proposing import prepared
    from wm_plugin.worlds.agents.rollout import path_of

    out = Path(args.out)
    check_out(out, (".jsonl",))
    world, folder = proposals.check(args)
    check_apart([args.source, args.propose], {"--out": out, "--work": folder / "proposals.jsonl"})
    counts: Counter[str] = Counter()
    trajectories = 0

    def counted() -> Any:
        nonlocal trajectories
        for trajectory in progress(read(args.source), "trajectories"):
            trajectories += 1
            yield trajectory

    def some(made: Iterable[Transition]) -> Iterator[Transition]:
        """The same, or an error in the place of an empty file."""
        empty = True
        for one in made:
            empty = False
            yield one
        if empty:
            reasons = "".join(f"; {count} left out: {reason}" for reason, count in counts.most_common())
            raise UserError(
                f"{args.source}: no transition is left to write, and {out} is as it was; {trajectories} trajectories read"
                f"{reasons}. They must be of --world {args.world}, as wm env rollout writes them"
            )

    with ExitStack() as held:
        propose = proposals.make(args, world, folder, counts, held)
        environment = world.make()
        experts = prepared(counted(), propose, path_of(environment))
        made = iwm(experts, environment, propose, alternatives=args.alternatives, counts=counts)
        written = write_transitions(some(made), out, [args.source])
    expert, alternative = counts.pop("expert", 0), counts.pop("alternative", 0)
    return {
        "trajectories": trajectories,
        "transitions": written,
        "expert": expert,
        "alternative": alternative,
        "left_out": dict(counts.most_common()),
        "out": str(out),
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['out']}: {result['transitions']} transitions of {result['trajectories']} trajectories, "
        f"{result['expert']} of the expert's actions and {result['alternative']} of others"
    )
    for reason, count in result["left_out"].items():
        print(f"  {count} left out: {reason}")
