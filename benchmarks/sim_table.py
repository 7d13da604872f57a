"""Compare policies that were trained in the real world, in a world model, under control, or in a mixture.

    wm lab pipeline sim_rl_tiny
    python benchmarks/sim_table.py runs/sim_rl_tiny/trl/evaluations --out table.json

Writes a table of the folders that the pipeline's evaluations left, and table.md beside it. Intervals are over seeds, by Student's
t; differences to the arm `real`, or `--against`, are paired by seed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wm_plugin.recipes.pipelines import tables

from stamps import stamp
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import RESULT, Evaluation, read_result
from wm_plugin.lab.report.arms import spread
from wm_plugin.lab.tiny.held_out import EVALUATION, UNITS
from wm_plugin.runtime.command import exit_code

SHOWN = ("success", "env_nll", "exact")  # in the table
REAL = "real"  # the arm that others are compared with
ORDER = ("start", REAL, "sim", "controlled", "mixed")


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
        raise UserError(f"{', '.join(map(str, folders))} has no folders with a {RESULT} of {EVALUATION}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of evaluations, or folders of such")
    parser.add_argument("--out", type=Path, required=True, help="X.json")
    parser.add_argument(
        "--against", default=REAL, metavar="ARM", help=f"the arm that others are compared with ({REAL})"
    )
    options = parser.parse_args(arguments)
    tables.check_json(options.out)
    found = table(_read(options.folders), options.against)
    tables.write(options.out, found, markdown(found))
    stamp(options.out, {"against": options.against})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main, "benchmarks/sim_table.py"))
