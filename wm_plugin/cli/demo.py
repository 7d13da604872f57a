"""`wm demo`: two short GRPO runs on TRL, without and with the world-model objective, and a report."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from wm_plugin.data.outputs import check_folder
from wm_plugin.errors import MissingExtraError


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo", help="train a tiny policy with and without the objective (minutes on one CPU) and write a report"
    )
    parser.add_argument("--steps", type=int, default=60, help="GRPO steps of each arm (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the start, the training boards and both arms (default: 0)"
    )
    parser.add_argument(
        "--out",
        default="demo",
        help="directory for report.html, result.json, the policies and held-out episodes (default: demo)",
    )
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the demo, with progress bars on a terminal, and return its result."""
    check_folder(Path(args.out))  # before imports of many seconds
    run_demo = _run_demo()
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, planned: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=planned)

        result: dict[str, Any] = run_demo(args.steps, args.seed, args.out, progress)
    return result


def show(result: dict[str, Any]) -> None:
    """Print what looking ahead is worth, the arms as a table, the claims about them, and the path of the report."""
    console = Console()
    look_ahead = result["look_ahead"]
    console.print(look_ahead["sentence"], highlight=False, markup=False, soft_wrap=True)
    console.print(_table(result))
    for claim in look_ahead["claims"] + result["claims"]:
        console.print(claim["sentence"], highlight=False, markup=False, soft_wrap=True)
    folder = Path(result["held_out"]).parent
    last = list(result["policies"].values())[-1]
    for line in (
        f"Policies: {folder / 'policies'}; for a full report: wm eval one-step {result['held_out']} --as policy "
        f"--model {last} --out evals/{Path(last).name}; wm report {folder} evals --out report.html",
        f"Report: {result['report']}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _run_demo() -> Any:
    try:
        from wm_plugin.trl.demo import run_demo
    except MissingExtraError:
        raise MissingExtraError("the demo", "trl", "demo") from None
    return run_demo


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
