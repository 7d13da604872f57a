"""Tables of consistency (Real, WM, W2R, CR) of small world models, before and after their training, from the runs that are there.

Collects what `wm lab pipeline consistency_tiny` left in runs/consistency_tiny, and writes
benchmarks/results/consistency_tiny.json and, from it, consistency_tiny.md. Runs that are in the file and not in the folder stay.

    wm lab pipeline consistency_tiny && wm lab pipeline consistency_tiny --set which=scienceworld_135m
    python benchmarks/consistency_tiny.py
    python benchmarks/consistency_tiny.py --runs ~/runs/consistency_tiny
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stamps import stamp
from wm_plugin.data.outputs import write_text
from wm_plugin.lab.evaluation.measures import RESULT, Evaluation, Measure, read_result

RESULTS = Path(__file__).parent / "results" / "consistency_tiny.json"
WORLDS, SIZES, WHEN = ("textworld", "scienceworld"), ("tiny", "135m"), ("before", "after")
MEASURES = ("real", "wm", "w2r", "cr", "cr_mean_of_ratios", "together", "parting_turn")
KEY = ("world", "size", "seed", "when")
KEPT = ("prompts", "world_context", "max_turns", "seed")  # of an evaluation's settings
INTRODUCTION = """\
Consistency (Word2World) of small world models on TextWorld and ScienceWorld, before and after a short SFT on a CPU, by
`wm lab pipeline consistency_tiny`; `python benchmarks/consistency_tiny.py` writes this. *tiny* has 1M parameters and starts
from random weights, *135m* is SmolLM2-135M-Instruct. They are trained for some minutes on rollouts of an expert and a wanderer,
which then are the agents here. Both look into their environment, so that in the world model they take the actions of their real
episodes: CR then says only whether the world model ends episodes too early. *same* says more: the share of episodes in which
the world model and the real world say the same to the end.

Shares are of tasks without a failure in any arm; brackets are 95% intervals over tasks. *CR* is the ratio of means, *mean CR*
the mean of the agents' ratios. *failed*: an answer was cut or empty; *WM, all* counts these as not won. *parts* is the median
turn at which the two worlds first say different things. *–*: undefined, since Real is 0 or no episode is without a failure. Every
size is ours, and chosen for the time that it takes.

| world | model | seed | trained | agent | split | episodes | failed | Real | WM | WM, all | W2R | CR | mean CR | same | parts |
|---|---|---:|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""
SETTINGS = """
What the runs are: tasks of each split, turns of an episode, whether the hidden state is shown, and how the models were trained.

| world | model | seed | tasks | turns | hidden state | steps | rows a step | learning rate | rows | tokens | that count |
|---|---|---:|---|---:|---|---:|---:|---:|---:|---:|---:|
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/consistency_tiny"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    records = json.loads(options.out.read_text()) if options.out.exists() else []
    found = list(collect(options.runs))
    kept = {tuple(record[name] for name in KEY): record for record in [*records, *found]}
    records = sorted(kept.values(), key=_order)
    write_text(options.out, json.dumps(records, indent=1) + "\n")
    write_text(options.out.with_suffix(".md"), table(records))
    stamp(options.out, {}, ["/".join(str(one[name]) for name in KEY) for one in found])
    print(f"{len(found)} evaluations read; {len(records)} in {options.out}")


def collect(runs: Path) -> Iterator[dict[str, Any]]:
    """A record of each evaluation in the folder of the pipeline's runs."""
    for world in WORLDS:
        for size in SIZES:
            for work in sorted(runs.glob(f"{world}_{size}_s*")):
                for when in WHEN:
                    if (work / when / RESULT).is_file():
                        yield _record(work, world, size, when)


def _record(work: Path, world: str, size: str, when: str) -> dict[str, Any]:
    result = read_result(work / when)
    seed = result.settings["seed"]
    return {
        "world": world,
        "size": size,
        "seed": seed,
        "when": when,
        "data": result.data,
        "settings": {name: result.settings[name] for name in KEPT},
        "training": _training(work),
        "failures": dict(result.failures),
        "groups": [_group(result, by, group) for by, group in _groups(result)],
    }


def _groups(result: Evaluation) -> Iterator[tuple[str, str]]:
    """Of all episodes, of each agent, and of each agent on each split."""
    found = dict.fromkeys((one.by, one.group) for one in result.measures)
    yield from (pair for pair in found if pair[0] in ("", "agent", "agent, split"))


def _group(result: Evaluation, by: str, group: str) -> dict[str, Any]:
    measures = {name: _values(result.measure(name, by, group)) for name in MEASURES}
    real = result.measure("real", by, group)
    return {"by": by, "group": group, "count": real.count, "failed": real.failed, **measures}


def _values(one: Measure) -> dict[str, Any]:
    return {"value": one.value, "low": one.low, "high": one.high, "with_failed": one.with_failed}


def _training(work: Path) -> dict[str, Any]:
    """How the model was trained, from what the script and the trainer left; nothing where that is not there."""
    made: dict[str, Any] = {}
    if (work / "rows.parquet").is_file():
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(work / "rows.parquet").to_pydict()
        made |= {"rows": len(table["input_ids"]), "tokens": sum(map(len, table["input_ids"]))}
        made["counted"] = sum(map(sum, table["assistant_masks"]))
    if (work / "trained" / "training_args.bin").is_file():
        import torch

        args = torch.load(work / "trained" / "training_args.bin", weights_only=False)  # of our own run
        made |= {"steps": args.max_steps, "learning_rate": args.learning_rate}
        made["batch"] = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return made


def _order(record: dict[str, Any]) -> tuple[Any, ...]:
    return WORLDS.index(record["world"]), SIZES.index(record["size"]), record["seed"], WHEN.index(record["when"])


def table(records: list[dict[str, Any]]) -> str:
    """The tables of all runs, as Markdown."""
    rows = [_row(record, group) for record in records for group in record["groups"]]
    runs = {tuple(record[name] for name in KEY[:3]): record for record in records}
    return INTRODUCTION + "".join(rows) + SETTINGS + "".join(map(_settings_row, runs.values()))


def _row(record: dict[str, Any], group: dict[str, Any]) -> str:
    agent, _, split = group["group"].partition(", ")
    cells = [
        record["world"],
        record["size"],
        str(record["seed"]),
        record["when"],
        agent or "all",
        split or "all",
        str(group["count"]),
        str(group["failed"]),
        *(_share(group[name]["value"]) for name in ("real", "wm")),
        _share(group["wm"]["with_failed"]),
        _share(group["w2r"]["value"]),
        _limited(group["cr"]),
        _number(group["cr_mean_of_ratios"]["value"]),
        _limited(group["together"], "{:.0%}"),
        "" if group["parting_turn"]["value"] is None else f"{group['parting_turn']['value']:g}",
    ]
    return f"| {' | '.join(cells)} |\n"


def _settings_row(record: dict[str, Any]) -> str:
    settings, training = record["settings"], record["training"]
    tasks = re.search(r"(\d+ \w+(?: and \d+ \w+)*) tasks", record["data"])
    trained = [str(training.get(name, "")) for name in ("steps", "batch", "learning_rate", "rows", "tokens", "counted")]
    cells = [
        record["world"],
        record["size"],
        str(record["seed"]),
        tasks[1] if tasks else "",
        str(settings["max_turns"]),
        "yes" if settings["world_context"] else "no",
        *trained,
    ]
    return f"| {' | '.join(cells)} |\n"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _limited(one: dict[str, Any], form: str = "{:.2f}") -> str:
    if one["value"] is None:
        return "–"
    limits = "" if one["low"] is None else f" [{form.format(one['low'])}, {form.format(one['high'])}]"
    return form.format(one["value"]) + limits


if __name__ == "__main__":
    main()
