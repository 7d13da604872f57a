"""What the cost benchmarks share: the objectives that they compare, measurements in turn, and the table of their ratios.

The question, for `step_time.py` and `verl_step_time.py`: do a count per trajectory or role, `select_rollout`, or two objectives
cost more than the plain objective? `RULE` says when. The plain objective runs twice: "again" shows the noise itself. `term_ms` is
the cost that a ratio hides: the arm's columns, count and term alone.
"""

import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin import EchoConfig

RULE = (
    "written before the run: an arm is within noise if the 99 % interval of the median of its paired ratios to the plain "
    "objective (bootstrap, 2,000 draws) reaches down to 1; the plain objective again shows the noise itself"
)
COEFF = 0.5
PLAIN = "plain"
# Half of the completions are failures, and half of the environment's tokens are a tool's, the others a user's.
OBJECTIVES: dict[str, Any] = {
    PLAIN: EchoConfig(COEFF),
    "again": EchoConfig(COEFF),
    "per_trajectory": EchoConfig(COEFF, normalization="per_trajectory"),
    "per_role": EchoConfig(COEFF, roles=("tool", "user"), normalization="per_role"),
    "select_rollout": EchoConfig(COEFF, select_rollout=lambda _, reward: reward <= 0),
    "two objectives": {"tools": EchoConfig(COEFF, roles=("tool",)), "users": EchoConfig(0.1, roles=("user",))},
}
MEMORY = (
    "stock",
    PLAIN,
    "two objectives",
    "second forward",
)  # whose memory is measured: the others have the plain one's columns
DRAWS = 2000


def take_turns(steps: Mapping[str, Callable[[], float]], repeats: int) -> Iterator[dict[str, list[float]]]:
    """Yield the seconds of each arm's steps so far, after each round. Arms take turns in changing order, so that whatever else
    runs hits all alike.

    Args:
        steps: of each arm, a function that takes a step and returns its seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    luck = random.Random(0)
    for _ in range(repeats):
        for name in luck.sample(sorted(steps), len(steps)):
            seconds[name].append(steps[name]())
        yield seconds


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the median of the paired ratios, its quartiles, its 99 % interval, and the ratio of the fastest steps."""
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    luck = random.Random(0)
    medians = sorted(statistics.median(luck.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return {
        "median": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "interval": [medians[DRAWS // 200], medians[-1 - DRAWS // 200]],
        "of_minima": min(mine) / min(theirs),
    }


def rows(
    seconds: Mapping[str, Sequence[float]], memory: Mapping[str, float], term: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return what is written of each arm. An arm with an objective is also compared with the plain one.

    Args:
        memory: MiB at the peak. term: CPU seconds of the columns, count and term alone.
    """
    found = []
    for name, own in seconds.items():
        row: dict[str, Any] = {"arm": name, "seconds_median": statistics.median(own)}
        row["to_stock"] = ratio(own, seconds["stock"])
        if name in OBJECTIVES:
            row["to_plain"] = ratio(own, seconds[PLAIN])
            low, _ = row["to_plain"]["interval"]
            row["within_noise"] = low <= 1
        if name in term:
            row["term_ms"] = 1e3 * statistics.median(term[name])
        if name in memory:
            row |= {"peak_mib": memory[name], "memory_ratio": memory[name] / memory["stock"]}
        found.append(row)
    return found


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| arm | s | to stock | to the plain term (99 % interval) | columns, count and term, ms | memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        plain = "–"
        if "to_plain" in row and row["arm"] != PLAIN:
            low, high = row["to_plain"]["interval"]
            verdict = "" if row["within_noise"] else ", beyond noise"
            plain = f"{row['to_plain']['median']:.3f} ({low:.3f} to {high:.3f}{verdict})"
        own = f"{row['term_ms']:.2f}" if "term_ms" in row else "–"
        memory = f"{row['memory_ratio']:.3f}" if "memory_ratio" in row else "–"
        cells = [row["arm"], f"{row['seconds_median']:.3f}", f"{row['to_stock']['median']:.3f}", plain, own, memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(path: Path, title: str, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, and its arms as a table beside it, which is also printed."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    facts = f"{result['device']}, {result['parameters']:,} parameters, {result['tokens']:,} tokens, {result['repeats']} rounds"
    text = f"# {title}\n\n{result['question'][0].upper()}{result['question'][1:]}: {facts}.\nThe rule, {result['rule']}.\n\n"
    path.with_suffix(".md").write_text(text + table(result["arms"]))
    print(table(result["arms"]))


def resident() -> float:
    """Return the MiB of this process's resident set at its peak."""
    # not getrusage: its peak is inherited from the process that started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024
