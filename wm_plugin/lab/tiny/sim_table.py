"""Compare policies that were trained in the real world, in a world model, under control, or in a mixture.

    python -m wm_plugin.lab.tiny.sim_table --model DIR --name real_s0 --step 20 --out EVALUATIONS/real_s0
    python -m wm_plugin.lab.tiny.sim_table --table EVALUATIONS... --out table.json

The first command measures a policy on held-out boards of the real world and writes a folder as `wm eval` does; the name is an arm
and a seed. The second writes a table of such folders, and table.md beside it. Intervals are over seeds, by Student's t;
differences to the arm `real`, or `--against`, are paired by seed.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.intervals import interval
from wm_plugin.lab.evaluation.measures import (
    RESULT,
    Evaluation,
    Measure,
    open_folder,
    read_result,
    write_result,
)
from wm_plugin.lab.report.arms import spread
from wm_plugin.lab.tiny import tables
from wm_plugin.runtime.command import exit_code, output

EVALUATION = "held-out boards"
UNITS = {"success": "share", "turns": "count", "env_nll": "nats", "exact": "share"}
SHOWN = ("success", "env_nll", "exact")  # in the table
REAL = "real"  # the arm that others are compared with
ORDER = ("start", REAL, "sim", "controlled", "mixed")


def measure(model: Path, name: str, step: int, boards: int, out: Path) -> Evaluation:
    """Let a policy play and predict the held-out boards, and write the evaluation to a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from wm_plugin.lab.tiny.held_out import HeldOut

    torch.set_num_threads(1)  # more threads are slower with so small a model
    folder = open_folder(out, EVALUATION, name, f"{boards} held-out boards of the grid")
    held_out = HeldOut(AutoTokenizer.from_pretrained(model), boards)
    measured = held_out.measure(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval())
    measures = []
    for figure, ratio in measured.ratios.items():
        low, high = interval(ratio.total.tolist(), ratio.count.tolist(), held_out.layouts(figure))
        measures.append(
            Measure(figure, ratio.mean, UNITS[figure], len(ratio.total), low=low, high=high, note="over wall layouts")
        )
    found = Evaluation(EVALUATION, name, f"{boards} held-out boards of the grid", {"step": step}, measures)
    write_result(found, folder)
    return found


def table(evaluations: Mapping[str, Evaluation], against: str = REAL) -> dict[str, Any]:
    """Return the arms with their figures over seeds, as JSON values."""
    arms: dict[str, dict[str, Evaluation]] = {}
    for name, evaluation in evaluations.items():
        arm, mark, seed = name.rpartition("_s")
        if not (mark and seed.isdecimal()):
            arm, seed = name, ""
        arms.setdefault(arm, {})[seed] = evaluation
    order = {arm: place for place, arm in enumerate(ORDER)}
    rows = []
    for arm in sorted(arms, key=lambda arm: (order.get(arm, len(order)), arm)):
        row: dict[str, Any] = {"arm": arm, "seeds": sorted(arms[arm]), "steps": _steps(arms[arm].values())}
        for figure in UNITS:
            row[figure] = _over([_value(one, figure) for one in arms[arm].values()])
        both = sorted(arms[arm].keys() & arms.get(against, {}).keys()) if arm != against else []
        if both:
            pairs = [(arms[arm][seed], arms[against][seed]) for seed in both]
            row[f"against_{against}"] = {
                figure: _over([_value(one, figure) - _value(real, figure) for one, real in pairs]) for figure in SHOWN
            }
        rows.append(row)
    return {"evaluation": sorted({one.data for one in evaluations.values()}), "against": against, "arms": rows}


def markdown(found: Mapping[str, Any]) -> str:
    """Write the table for people."""
    head = ["arm", "seeds", "steps", *SHOWN, f"success against {found['against']}"]
    rows = []
    for row in found["arms"]:
        against = row.get(f"against_{found['against']}", {}).get("success")
        steps = "/".join(map(str, row["steps"]))
        cells = [row["arm"], len([seed for seed in row["seeds"] if seed]) or "–", steps]
        cells += [_cell(row[figure]) for figure in SHOWN] + [_cell(against, signed=True)]
        rows.append(cells)
    note = (
        f"Of {', '.join(found['evaluation'])}, in the real world. Brackets: over three seeds or more the 95% interval of the "
        "mean by Student's t, over two both seeds; of one seed there is none. Differences are paired by seed."
    )
    return tables.markdown(head, rows, note)


def _over(values: Sequence[float]) -> dict[str, Any]:
    mean, limits = spread(values)
    return {"mean": mean, "low": limits and limits[0], "high": limits and limits[1], "values": list(values)}


def _cell(one: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    return "–" if one is None else tables.cell(one["mean"], one["low"], one["high"], signed=signed)


def _value(evaluation: Evaluation, figure: str) -> float:
    try:
        value = evaluation.measure(figure).value
    except KeyError:
        value = None
    if value is None:
        raise UserError(f"{evaluation.subject} has no {figure}; measure it again, into a new folder")
    return value


def _steps(evaluations: Any) -> list[int]:
    return sorted({int(one.settings.get("step", 0)) for one in evaluations})


def _read(folders: Sequence[Path]) -> dict[str, Evaluation]:
    paths = [path for folder in folders for path in [*folder.glob(RESULT), *sorted(folder.glob(f"*/{RESULT}"))]]
    found = {path.parent.name: read_result(path) for path in paths}
    found = {name: one for name, one in found.items() if one.name == EVALUATION}
    if not found:
        raise UserError(f"--table: {', '.join(map(str, folders))} has no folders with a {RESULT} of {EVALUATION}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m wm_plugin.lab.tiny.sim_table", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder to measure into; with --table, X.json")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="DIR", help="write the table of these folders, or of those inside"
    )
    parser.add_argument(
        "--against", default=REAL, metavar="ARM", help=f"the arm that others are compared with (default: {REAL})"
    )
    parser.add_argument("--model", type=Path, help="folder of the policy to measure")
    parser.add_argument("--name", help="name of the arm and the seed, such as real_s0")
    parser.add_argument("--step", type=int, default=0, help="how many steps it was trained")
    parser.add_argument("--boards", type=int, default=512, help="held-out boards (default: 512)")
    options = parser.parse_args(arguments)
    if options.table is not None:
        tables.check_json(options.out)
        found = table(_read(options.table), options.against)
        tables.write(options.out, found, markdown(found))
        return 0
    if options.model is None or not options.name:
        raise UserError("--model and --name are missing; give the policy, and its arm and seed, such as real_s0")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured = measure(options.model, options.name, options.step, options.boards, options.out)
    with output():
        print(json.dumps({"name": options.name} | {one.name: one.value for one in measured.measures}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "wm_plugin.lab.tiny.sim_table"))
