"""The pipeline rwml_tiny, run small on either host, and what each of its steps has to leave."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.scripts import RECIPES
from wm_plugin.data.readers import read
from wm_plugin.data.transitions import read_transitions


def run_pipeline(folder: Path, host: str, *settings: str) -> subprocess.CompletedProcess[str]:
    """`wm lab pipeline rwml_tiny` with little of everything, into the folder's `out`."""
    small = ("sft_steps=4", "tasks=16", "held_out=4", "turns=6", "k=2", "steps=1", f"host={host}", *settings)
    words = [word for one in small for word in ("--set", one)]
    command = [sys.executable, "-m", "wm_plugin", "lab", "pipeline", "rwml_tiny", "--out", "out", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(RECIPES.parent)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def check_pipeline(work: Path, rows: Path) -> None:
    """Each step of rwml_tiny left what the next one reads: 16 tasks, no invalid actions, fewer easy samples, rows."""
    played = list(read(work / "rollouts.jsonl"))
    tasks = Counter(trajectory.task_id for trajectory in played)
    assert len(tasks) == 16
    assert set(tasks.values()) == {3}
    assert not tasks.keys() & {trajectory.task_id for trajectory in read(work / "held_out.jsonl")}
    invalid = sum(one.data["invalid"] for trajectory in played for _, _, one in trajectory.observed())
    left = list(read(work / "filtered.jsonl"))
    assert invalid > 0
    assert not any(one.data["invalid"] for trajectory in left for _, _, one in trajectory.observed())
    transitions, held_out, hard = (
        list(read_transitions(work / f"{name}.jsonl")) for name in ("transitions", "transitions.validation", "hard")
    )
    assert transitions
    assert held_out
    assert not {one.task_id for one in transitions} & {one.task_id for one in held_out}
    scores = [json.loads(line) for line in (work / "hard.easy.jsonl").read_text().splitlines()]
    assert len(scores) == len(transitions)
    assert sum(score["kept"] for score in scores) == len(hard)
    if rows.suffix == ".jsonl":
        observers = [json.loads(line)["observer"] for line in rows.read_text().splitlines()]
    else:
        from pyarrow import parquet

        observers = [row["extra_info"]["observer"] for row in parquet.read_table(rows).to_pylist()]
    assert 0 < len(observers) <= len(hard)  # a prompt that is too long is left out
    assert set(observers) == {"tool"}
