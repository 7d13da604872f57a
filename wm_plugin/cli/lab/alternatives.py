"""`wm lab alternatives`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wm_plugin.cli.lab.flags import ProposalFlags
from wm_plugin.cli.support import progress
from wm_plugin.data.outputs import check_apart, check_out
from wm_plugin.data.readers import read
from wm_plugin.data.schema import Transition
from wm_plugin.data.write import write_transitions
from wm_plugin.errors import UserError
from wm_plugin.lab.agents.alternatives import iwm
from wm_plugin.lab.agents.proposing import prepared
from wm_plugin.worlds.agents.rollout import path_of


def alternatives(source: str, /, *, out: Path, proposals: ProposalFlags) -> dict[str, Any]:
    """Write what an expert's actions, and others in the same states, bring about (RWML's baseline IWM).

    Plays each of an expert's trajectories again, tries other actions in each of its states, and writes the transitions of all of
    them. wm data build --as rwml-sft makes rows of them; with the expert's own turns (--as imitation), which wm lab mix adds,
    they are the data of implicit world modelling.

    As JSON: `trajectories` read, `transitions` written, of which `expert` and `alternative`, and `left_out` by reason.

    Args:
        source: An expert's trajectories, as wm env rollout writes them.
        out: X.jsonl.
    """
    check_out(out, (".jsonl",))
    world, folder = proposals.check(out)
    check_apart([source, proposals.propose], {"--out": out, "--work": folder / "proposals.jsonl"})
    counts: Counter[str] = Counter()

    def counted() -> Iterator[Any]:
        for trajectory in progress(read(source), "trajectories"):
            counts["trajectories"] += 1
            yield trajectory

    def not_empty(made: Iterable[Transition]) -> Iterator[Transition]:
        """Raise in the place of writing an empty file."""
        empty = True
        for one in made:
            empty = False
            yield one
        if empty:
            read_from = counts.pop("trajectories", 0)
            reasons = "".join(f"; {count} left out: {reason}" for reason, count in counts.most_common())
            raise UserError(
                f"{source}: no transition is left to write, and {out} is as it was; {read_from} trajectories read{reasons}. "
                f"They must be of --world {proposals.world}, as wm env rollout writes them"
            )

    with ExitStack() as held:
        propose = proposals.proposer(world, folder, counts, held)
        environment = world.make()
        experts = prepared(counted(), propose, path_of(environment))
        made = iwm(experts, environment, propose, alternatives=proposals.alternatives, counts=counts)
        written = write_transitions(not_empty(made), out, [source])
    return {
        "trajectories": counts.pop("trajectories", 0),
        "transitions": written,
        "expert": counts.pop("expert", 0),
        "alternative": counts.pop("alternative", 0),
        "left_out": dict(counts.most_common()),
        "out": str(out),
    }
