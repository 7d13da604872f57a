"""Write rollouts of the 4x4 grid as trajectories, half of them by a walker who knows the way."""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from wm_plugin.agents.rollout import play
from wm_plugin.agents.scripted import walker
from wm_plugin.environments.grid import MAX_TURNS, GridEnvironment, dataset_rows, expert, uniform
from wm_plugin.trajectories.schema import Source, Trajectory
from wm_plugin.trajectories.write import write


def rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """`count` episodes, by turns of an expert and of a walker who goes anywhere."""
    rng = random.Random(seed)
    for number, row in enumerate(dataset_rows(count, seed, held_out)):
        choose = (expert if number % 2 else uniform)(rng)
        played = play(GridEnvironment(), row, walker(choose), max_turns=MAX_TURNS)
        yield played.model_copy(update={"source": Source(format="wm", file="grid", row=number)})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m wm_plugin.tiny.rollouts", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="X.jsonl; its folder is made")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="of layouts that nothing is trained on")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    counts = write(rollouts(options.count, options.seed, held_out=options.held_out), options.out)
    print(f"{options.out}: {counts.trajectories} trajectories")


if __name__ == "__main__":
    main()
