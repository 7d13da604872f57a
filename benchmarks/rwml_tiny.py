"""Does the validation reward rise when the tiny recipes train with RwmlReward? A seed has a model and tasks of its own.

Runs rwml_<algorithm>_tiny.yaml of the host whose environment this is, in the world sql after recipes/<host>/run_rwml_sft_tiny.sh,
which is scored by ROUGE, and in textworld as run_rwml_pipeline_tiny.sh, which is scored by embeddings. Adds what comes out to
benchmarks/results/rwml_tiny.json, and writes the table, benchmarks/results/rwml_tiny.md, anew.

    python benchmarks/rwml_tiny.py --host trl --seeds 1 2 3
    python benchmarks/rwml_tiny.py --host verl --seeds 1 2 3 --world textworld
"""

import argparse
import json
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.rwml import (
    Trained,
    mean_and_error,
    train_by_trl,
    train_by_verl,
    train_text_world_by_trl,
    train_text_world_by_verl,
)

RESULTS = Path(__file__).parent / "results" / "rwml_tiny.json"
INTRODUCTION = """\
The validation reward of the tiny RWML recipes before and after training with RwmlReward, by each host's own validation: one
sampled prediction (temperature 1) of each held-out transition. `python benchmarks/rwml_tiny.py` writes this.

The transitions are real. sql: calls of run_query in the SQL environment, on databases that nothing is trained on, scored by ROUGE
rounded to 0.2; no embedding is asked for, as only a tool answers. textworld: what TextWorld says to a wanderer, in games that
nothing is trained on, scored by the embeddings of all-MiniLM-L6-v2: 1 if 1 − cosine < 0.2, else 0; the rows are what
`recipes/pipelines/rwml_tiny.sh` leaves. A seed is that of the model, the tasks, the actions, the warm start and the training.
Settings were chosen on seed 100, which is not here; every other seed that was run is.

Standard errors are over transitions, that of the rise is paired. Greedy is the same without sampling: what rises there is no
sharper distribution alone. CPU seconds include both validations, and the warm start where the run made it; cores were shared.

| world | host | algorithm | seed | before | after | rise | / s.e. | greedy before | after | rise | transitions | steps | CPU s |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", choices=("trl", "verl"), required=True)
    parser.add_argument("--world", choices=("sql", "textworld"), default="sql")
    parser.add_argument("--algorithms", nargs="+", choices=("grpo", "gspo"), default=["grpo", "gspo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for algorithm in options.algorithms:
                if options.host == "trl":
                    train = train_by_trl if options.world == "sql" else train_text_world_by_trl
                    trained = train(algorithm, Path(folder), seed, "--disable_tqdm", "true", greedy=True)
                else:
                    train = train_by_verl if options.world == "sql" else train_text_world_by_verl
                    trained = train(algorithm, Path(folder), seed)
                add(record(options.world, options.host, algorithm, seed, trained))


def record(world: str, host: str, algorithm: str, seed: int, trained: Trained) -> dict[str, Any]:
    greedy = [*map(mean_and_error, trained.greedy)]
    if greedy:
        first, last = trained.greedy
        greedy.append(mean_and_error([after - before for before, after in zip(first, last, strict=True)]))
    return {
        "world": world,
        "host": host,
        "algorithm": algorithm,
        "seed": seed,
        "before": mean_and_error(trained.before),
        "after": mean_and_error(trained.after),
        "rise": trained.rise(),
        "greedy": greedy,
        "transitions": len(trained.before),
        "steps": trained.steps,
        "cpu_seconds": round(trained.cpu_seconds),
        "versions": {name: metadata.version(name) for name in (host, "transformers", "torch")}
        | {"python": platform.python_version()},
    }


def add(new: dict[str, Any]) -> None:
    """Into the file, in the place of an earlier run of the same."""
    key = ("world", "host", "algorithm", "seed")
    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    records = [old for old in records if [old[name] for name in key] != [new[name] for name in key]] + [new]
    records.sort(key=lambda one: [one[name] for name in key])
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
    versions = {
        ", ".join(f"{name} {number}" for name, number in one["versions"].items()): one["host"] for one in records
    }
    RESULTS.with_suffix(".md").write_text(
        INTRODUCTION + "".join(map(row, records)) + "\nVersions: " + "; ".join(versions) + ".\n"
    )
    print(row(new), end="", flush=True)


def row(one: dict[str, Any]) -> str:
    def shown(pair: list[float]) -> str:
        return f"{pair[0]:.3f} ± {pair[1]:.3f}"

    cells = [
        one["world"],
        one["host"],
        one["algorithm"].upper(),
        one["seed"],
        shown(one["before"]),
        shown(one["after"]),
    ]
    cells += [shown(one["rise"]), f"{one['rise'][0] / one['rise'][1]:.1f}"]
    cells += [shown(pair) for pair in one["greedy"]] or ["–"] * 3
    cells += [one["transitions"], one["steps"], one["cpu_seconds"]]
    return f"| {' | '.join(map(str, cells))} |\n"


if __name__ == "__main__":
    main()
