"""`wm demo`."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints, table
from wm_plugin.data.outputs import check_folder
from wm_plugin.errors import MissingExtraError
from wm_plugin.runtime.arithmetic import use_plain_kernels

_MEASURES = {
    "task success": "success",
    "next observation exact": "exact",
    "environment NLL": "env_nll",
    "turns": "turns",
}
_WAYS = {"plain": "plain", "coin": "by a coin", "ahead": "with itself", "oracle": "in the real world"}


def show(result: dict[str, Any]) -> None:
    """Print the answers, the policies side by side, and the path of the report."""
    for sentence in result["answers"]:
        print(sentence)
    print()
    table(_rows(result), title=f"Held-out boards, {result['steps']} GRPO steps, seed {result['seed']}")
    print()
    last = Path(list(result["policies"].values())[-1])
    folder = Path(result["held_out"]).parent
    full = f"wm eval one-step {result['held_out']} --as policy --model {last} --out evals/{last.name}"
    print(f"Policies: {folder / 'policies'}; for a full report: {full}; wm report {folder} evals --out report.html")
    print(f"Report: {result['report']}")


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """A row for each measure, with a column for the start and for each arm: 80 columns wide at most."""
    alone, kept = result["arms"]
    names = ("", "before", "RL alone", f"with the objective ({kept['coeff']:g})")
    rows = [
        (label, *(f"{value:.2f}" for value in (alone[f"{key}_start"], alone[f"{key}_end"], kept[f"{key}_end"])))
        for label, key in _MEASURES.items()
    ]
    ahead = result["look_ahead"]
    for way, label in _WAYS.items():
        rows.append((f"success, {label}", *(f"{figures[way]:.2f}" for figures in ahead["figures"].values())))
    rows.append(("CPU seconds of RL", "", *(f"{arm['cpu_seconds']:.0f}" for arm in result["arms"])))
    return [dict(zip(names, row, strict=True)) for row in rows]


@prints(show)
def demo(*, steps: Count = 30, seed: int = 0, out: str = "demo", native: bool = False) -> dict[str, Any]:
    """Train a tiny policy with and without the objective (minutes on one CPU) and write a report.

    Args:
        steps: GRPO steps of each arm.
        seed: Seed of the start, the training boards and both arms.
        out: Folder for report.html, result.json, the policies and held-out episodes.
        native: Use this processor's fastest instructions: other figures than elsewhere, in less time.
    """
    check_folder(Path(out))  # before imports of many seconds
    if not native:
        use_plain_kernels()
    try:
        from wm_plugin.trl.demo import run_demo
    except MissingExtraError:
        raise MissingExtraError("the demo", "trl", "demo") from None
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, planned: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=planned)

        result: dict[str, Any] = run_demo(steps, seed, out, progress)
    return result
