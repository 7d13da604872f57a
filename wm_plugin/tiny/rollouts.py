"""Write rollouts as trajectories: of the 4x4 grid, half of them by a walker who knows the way; or of the SQL tasks, whose
observations have words, by an agent that asks the right query, and then answers with what it shows or with nothing of the kind.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from wm_plugin.agents.rollout import Policy, play
from wm_plugin.agents.scripted import call, scripted
from wm_plugin.environments import sql
from wm_plugin.environments.grid import MAX_TURNS, GridEnvironment, dataset_rows, expert, wanderer
from wm_plugin.trajectories.schema import Action, Source, Trajectory
from wm_plugin.trajectories.write import write


def rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """`count` episodes, by turns of an expert and of a walker who goes anywhere."""
    rng = random.Random(seed)
    for number, row in enumerate(dataset_rows(count, seed, held_out)):
        choose = (expert if number % 2 else wanderer)(rng)
        played = play(GridEnvironment(), row, scripted(choose), max_turns=MAX_TURNS)
        yield played.model_copy(update={"source": Source(format="wm", file="grid", row=number)})


def sql_rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """`count` episodes of three turns: list_tables, run_query, submit_answer."""
    rng = random.Random(seed)
    for number, row in enumerate(sql.dataset_rows(count, seed, held_out)):
        played = play(sql.SqlEnvironment(), row, _asker(rng), max_turns=sql.MAX_TURNS)
        yield played.model_copy(update={"source": Source(format="wm", file="sql", row=number)})


def _asker(rng: random.Random) -> Policy:
    def act(trajectory: Trajectory, environment: sql.SqlEnvironment) -> Action:
        if not trajectory.turns:
            return call("list_tables")
        if len(trajectory.turns) == 1:
            return call("run_query", query=environment._query)
        shown = trajectory.turns[1].observations[0].text.split("\n")[1]
        return call("submit_answer", answer=rng.choice([shown, "I do not know"]))

    return act


ROLLOUTS = {"grid": rollouts, "sql": sql_rollouts}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m wm_plugin.tiny.rollouts", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="X.jsonl; its folder is made")
    parser.add_argument("--environment", choices=ROLLOUTS, default="grid")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="of layouts, or databases, that nothing is trained on")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    played = ROLLOUTS[options.environment](options.count, options.seed, held_out=options.held_out)
    counts = write(played, options.out)
    print(f"{options.out}: {counts.trajectories} trajectories")


if __name__ == "__main__":
    main()
