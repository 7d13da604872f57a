"""Measure a careless shopper whose purchases a world model, or a control in its place, checks: success by the budget of checks
(Word2World, table 4; the controls are ours).

    python -m wm_plugin.recipes.pipelines.verify_shop --rollouts --count 1000 --out careless.jsonl
    python -m wm_plugin.recipes.pipelines.verify_shop --model DIR --budget 4 --count 64 --out EPISODES/model_4.jsonl
    python -m wm_plugin.recipes.pipelines.verify_shop --control coin --budget 4 --count 64 --out EPISODES/coin_4.jsonl
    python -m wm_plugin.recipes.pipelines.verify_shop --table EPISODES --out table.json

The first writes the shopper's own episodes, to train on. The next two play held-out tasks of the shop; every run has the same
tasks and the same draws of the shopper. The last writes a table of all files in a folder, and table.md beside it: success, its
differences to a budget of 0 and to the world model (paired by task), and how often the verdicts were right. The shop tells
whether even a refused purchase would have succeeded.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.recipes.pipelines import tables
from wm_plugin.recipes.pipelines.shopper import HESITATES, careless, would_succeed

from wm_plugin.data.readers import read
from wm_plugin.data.readers.base import Reject
from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Key, Measure, Sums, differences
from wm_plugin.runtime.command import exit_code, output
from wm_plugin.worlds.agents.controls import CONTROLS
from wm_plugin.worlds.agents.rollout import play
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.shop import MAX_TURNS, ShopEnvironment, dataset_rows
from wm_plugin.worlds.wrappers.verified import verified

# more than the shop's own 30, so that small budgets have room: an attempt takes five or six turns
TURNS = 60
TASKS = 1024  # at most this many different ones to train on
MODEL = "model"
ADVISERS = (MODEL, *CONTROLS)
ATTEMPTS = "attempts"  # in a trajectory's metadata: each attempted purchase's verdict, and whether it was right
_SUCCESS, _REWARD = Key("success"), Key("reward")
_COUNTS = ("checks", "refused", "spent", "unanswered")
_MATRIX = ("TP", "FP", "FN", "TN")


def rollouts(count: int, seed: int, *, held_out: bool = False) -> Iterator[Trajectory]:
    """Yield `count` episodes of a careless shopper, who repeats the tasks if there are fewer."""
    tasks = dataset_rows(min(count, TASKS), seed, held_out)
    for number in range(count):
        row = tasks[number % len(tasks)]
        choose = careless(random.Random(f"{seed}/{number}/{held_out}"), hesitates=HESITATES)
        trajectory = play(ShopEnvironment(), row, scripted(choose), max_turns=MAX_TURNS)
        yield trajectory.model_copy(update={"source": Source(format="wm", file="shop", row=number)})


def asked(model: str, seed: int, *, url: str | None = None, cache: str | bool = True) -> dict[str, Any]:
    """Return the fields of `VerifyConfig` for a world model.

    Args:
        model: its folder, or its name at `url`.
        cache: a file for its answers, most of which are the same for all budgets.
    """
    return {"world_model": {"model": model, "url": url, "max_tokens": 96, "repair": 0, "seed": seed, "cache": cache}}


def episodes(adviser: Mapping[str, Any], budget: int, count: int, seed: int) -> Iterator[Trajectory]:
    """Play held-out tasks with the shopper, whose purchases `adviser` (fields of `VerifyConfig`) checks."""
    environment = verified(ShopEnvironment, {"budget": budget, **adviser})()
    for number, row in enumerate(dataset_rows(count, seed, held_out=True)):
        right: list[bool] = []
        shopper = scripted(careless(random.Random(f"{seed}/{number}")))

        def act(trajectory: Trajectory, world: Any, shopper: Any = shopper, right: list[bool] = right) -> Any:
            action = shopper(trajectory, world)
            if action is not None and action.calls[0].name == "buy":
                right.append(would_succeed(world))
            return action

        row = {**row, "task_id": str(number), "max_turns": TURNS}
        played = play(environment, row, act, max_turns=2 * TURNS)  # refused purchases are no turns of the shop
        buys = [seen for turn in played.turns for seen in turn.observations if seen.tool == "buy"]
        verdicts = [seen.data.get("verify", {}).get("verdict") for seen in buys]
        attempts = [{"verdict": verdict, "right": one} for verdict, one in zip(verdicts, right, strict=True)]
        source = Source(format="wm", file="shop", row=number)
        yield played.model_copy(update={"source": source, "metadata": {**played.metadata, ATTEMPTS: attempts}})


def table(played: Mapping[tuple[str, int], Sequence[Trajectory]]) -> dict[str, Any]:
    """Return the figures of each adviser and budget, as JSON values. With a budget of 0 the adviser is "none".

    Args:
        played: each adviser's and budget's episodes of the same tasks.
    """
    sums = {key: _sums(some) for key, some in played.items()}
    rows = []
    for (adviser, budget), some in played.items():
        key = adviser, budget
        figures = {one.name: one for one in sums[key].measures()}
        counts = {
            name: sum(one.metadata["figures"].get(f"verify/{name}", 0) for one in some) / max(1, len(some))
            for name in _COUNTS
        }
        rows.append(
            {
                "adviser": adviser if budget else "none",
                "budget": budget,
                "episodes": len(some),
                "success": _interval(figures["success"]),
                "reward": _interval(figures["reward"]),
                "against_0": _against(sums, key, next((one for one in sums if not one[1]), key)),
                "model_against_it": _against(sums, (MODEL, budget), key),
                **counts,
                "verdicts": _right(some),
            }
        )
    return {"rows": rows}


def _against(sums: Mapping[tuple[str, int], Sums], key: tuple[str, int], other: tuple[str, int]) -> Any:
    """Return the difference in success, paired by task; None if either is missing or both are the same."""
    if key == other or key not in sums or other not in sums:
        return None
    found = differences(sums[key], sums[other])
    return next((_interval(one) for one in found if one.name == "success_difference"), None)


def markdown(found: Mapping[str, Any]) -> str:
    """Write the table for people."""
    names = (*_COUNTS, "right", *_MATRIX)
    head = ["who checks", "budget", "episodes", "success", "against 0", "model against it", *names]
    rows = []
    for row in found["rows"]:
        verdicts = row["verdicts"]
        cells = [
            row["adviser"],
            row["budget"],
            row["episodes"],
            _cell(row["success"]),
            _cell(row["against_0"], signed=True),
            _cell(row["model_against_it"], signed=True),
            *(f"{row[name]:.2f}" for name in _COUNTS),
            "–" if verdicts["accuracy"] is None else f"{verdicts['accuracy']:.3f}",
            *(verdicts[name] for name in _MATRIX),
        ]
        rows.append(cells)
    note = (
        "Held-out tasks of the shop, in the real world. Who checks: the world model, or a control in its place, which refuses, "
        "accepts, or tosses a coin, or as the oracle knows. Model against it: the world model's success less that of the row. "
        "Brackets: of success 95%, of differences 99%, over tasks; differences are paired by task. Of an episode on average: "
        "checks, purchases that were refused, purchases when the budget was spent, checks without an answer. Right: the share of "
        "checks whose verdict was right. TP: success was predicted, and comes; FP: predicted, and does not come; FN and TN: "
        "failure was predicted."
    )
    return tables.markdown(head, rows, note)


def _sums(some: Sequence[Trajectory]) -> Sums:
    sums = Sums()
    for one in some:
        task = str(one.task_id)
        sums.add(_SUCCESS, task, float(bool(one.success)))
        sums.add(_REWARD, task, float(one.reward or 0.0))
    return sums


def _right(some: Sequence[Trajectory]) -> dict[str, Any]:
    """Count how often the verdicts on purchases were right: the confusion matrix and its accuracy."""
    counts: Counter[str] = Counter()
    for one in some:
        for attempt in one.metadata[ATTEMPTS]:
            if attempt["verdict"] in ("passed", "refused"):
                passed = attempt["verdict"] == "passed"
                counts[("T" if passed is attempt["right"] else "F") + ("P" if passed else "N")] += 1
    accuracy = (counts["TP"] + counts["TN"]) / counts.total() if counts else None
    return {**{name: counts[name] for name in _MATRIX}, "accuracy": accuracy}


def _interval(one: Measure) -> dict[str, Any]:
    return {"value": one.value, "low": one.low, "high": one.high}


def _cell(one: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return "–" if one is None else tables.cell(one["value"], one["low"], one["high"], signed=signed)


def _read(folder: Path) -> dict[tuple[str, int], list[Trajectory]]:
    found = {}
    for path in folder.glob("*_*.jsonl"):
        adviser, _, budget = path.stem.rpartition("_")
        if adviser in ADVISERS and budget.isdecimal():
            found[adviser, int(budget)] = [one for one in read(path, "own") if not isinstance(one, Reject)]
    if not found:
        raise UserError(f"--table: {folder} has no files like model_4.jsonl")
    if any(ATTEMPTS not in one.metadata for some in found.values() for one in some):
        raise UserError(f"--table: {folder} has other episodes; play them with --model or --control")
    return dict(sorted(found.items(), key=lambda one: (one[0][1], ADVISERS.index(one[0][0]))))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m wm_plugin.recipes.pipelines.verify_shop", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="X.jsonl to play into; with --table, X.json")
    parser.add_argument("--rollouts", action="store_true", help="write the shopper's own episodes, unchecked")
    parser.add_argument("--table", type=Path, metavar="DIR", help="write the table of the episodes in this folder")
    parser.add_argument("--model", help="the world model's folder; with --url its name there")
    parser.add_argument("--control", choices=CONTROLS, help="checks in a world model's place")
    parser.add_argument("--url", help="an OpenAI-compatible server that has the world model")
    parser.add_argument("--cache", metavar="FILE", help="stores the world model's answers for other budgets")
    parser.add_argument("--budget", type=int, default=4, help="checks of an episode (default: 4)")
    parser.add_argument("--count", type=int, default=64, help="held-out tasks (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks and of the shopper")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.table is not None:
        tables.check_json(options.out)
        found = table(_read(options.table))
        tables.write(options.out, found, markdown(found))
        return 0
    if options.rollouts:
        counts = write(rollouts(options.count, options.seed), options.out)
        with output():
            print(f"{options.out}: {counts.trajectories} trajectories")
        return 0
    if (options.model is None) is (options.control is None):
        raise UserError(
            "--model or --control: write the world model's folder (with --url its name there), or a control"
        )
    if options.count < 1 or options.budget < 0:
        raise UserError(f"--count is {options.count} and --budget {options.budget}; write numbers >= 1 and >= 0")
    adviser = {"control": options.control}
    if options.model:
        adviser = asked(options.model, options.seed, url=options.url, cache=options.cache or True)
    some = episodes(adviser, options.budget, options.count, options.seed)
    counts = write(some, options.out)
    with output():
        print(f"{options.out}: {counts.trajectories} episodes")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.recipes.pipelines.verify_shop"))
