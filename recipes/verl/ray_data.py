"""Convert, filter and expand on a Ray cluster, with the functions that `wm data` runs on one machine.

    python -m wm_plugin.recipes.verl.ray_data OUT SRC [SRC ...]

Sources lie where every machine sees them. Ray hands out parts: a file, or a range of its lines. The transitions and their order
are the same as from one process. Rejected rows are left out; `wm data convert` lists them. So is the filter `duplicates`: it
remembers what it has seen, and no machine sees all. Transitions go to files in the folder OUT, which is new or empty;
they get their names once all are written.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray

from wm_plugin.data import Trajectory, expand
from wm_plugin.data.filter import Filter
from wm_plugin.data.outputs import check_apart, check_new_folder, work_folder
from wm_plugin.data.readers import PART, Part, parts, read_part
from wm_plugin.runtime.command import exit_code, output

WITHOUT = ("duplicates",)


def transitions(batch: dict[str, Any]) -> dict[str, list[str]]:
    """Parts to transitions, as JSON."""
    kept: dict[str, list[str]] = {"transition": []}
    for part in batch["part"]:
        rows = (row for row in read_part(part) if isinstance(row, Trajectory))
        kept["transition"] += [transition.to_bytes().decode() for transition in expand(Filter(without=WITHOUT)(rows))]
    return kept


def run(sources: list[Path], *, size: int = PART) -> "ray.data.Dataset":
    """The transitions of all sources: one row each, in the column `transition`."""
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    found: list[dict[str, Part]] = [{"part": part} for source in sources for part in parts(source, size=size)]
    return ray.data.from_items(found).map_batches(transitions, batch_size=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    args = parser.parse_args()
    check_apart(args.sources, {"OUT": args.out})
    check_new_folder(args.out, "OUT")
    args.out.mkdir(parents=True, exist_ok=True)
    count = 0
    with work_folder(args.out / "transitions") as folder:
        for number, batch in enumerate(run(args.sources).iter_batches(batch_size=10_000)):
            lines = [f"{line}\n" for line in batch["transition"]]
            (folder / f"{number:05}.jsonl").write_text("".join(lines), encoding="utf-8")
            count += len(lines)
        for file in sorted(folder.iterdir()):
            os.replace(file, args.out / file.name)
    with output():
        print(json.dumps({"transitions": count, "out": str(args.out)}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "ray_data"))
