"""`wm demo`."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints
from wm_plugin.data.outputs import check_folder
from wm_plugin.errors import MissingExtraError


def show(result: dict[str, Any]) -> None:
    """Print what looking ahead is worth, the arms as a table, the claims about them, and the path of the report."""
    look_ahead, last = result["look_ahead"], Path(list(result["policies"].values())[-1])
    print(look_ahead["sentence"])
    Console().print(_table(result))
    for claim in look_ahead["claims"] + result["claims"]:
        print(claim["sentence"])
    folder = Path(result["held_out"]).parent
    full = f"wm eval one-step {result['held_out']} --as policy --model {last} --out evals/{last.name}"
    print(f"Policies: {folder / 'policies'}; for a full report: {full}; wm report {folder} evals --out report.html")
    print(f"Report: {result['report']}")


def _table(result: dict[str, Any]) -> Table:
    table = Table(title=f"Held-out boards, {result['steps']} GRPO steps, seed {result['seed']}: start → end")
    table.add_column("arm")
    measures = {"exact match": "exact", "environment NLL": "env_nll", "success": "success"}
    measures |= {"success, looking ahead": "look_ahead", "turns": "turns"}
    for label in (*measures, "policy tokens", "CPU seconds"):
        table.add_column(label, justify="right")
    for arm in result["arms"]:
        cells = [f"{arm[f'{measure}_start']:.2f} → {arm[f'{measure}_end']:.2f}" for measure in measures.values()]
        table.add_row(f"coeff {arm['coeff']:g}", *cells, f"{arm['policy_tokens']:,}", f"{arm['cpu_seconds']:.0f}")
    return table


@prints(show)
def demo(*, steps: Count = 60, seed: int = 0, out: str = "demo") -> dict[str, Any]:
    """Train a tiny policy with and without the objective (minutes on one CPU) and write a report.

    Args:
        steps: GRPO steps of each arm.
        seed: Seed of the start, the training boards and both arms.
        out: Folder for report.html, result.json, the policies and held-out episodes.
    """
    check_folder(Path(out))  # before imports of many seconds
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
