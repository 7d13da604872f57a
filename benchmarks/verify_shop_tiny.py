"""Checks before purchases by a tiny world model, beside controls that know nothing or everything: the tables of several seeds.

Reads what `wm lab pipeline verify_shop_tiny` left in runs/verify_shop_tiny, run with --set seed=0, 1 and 2; writes
benchmarks/results/verify_shop_tiny.json and .md.

    for seed in 0 1 2; do wm lab pipeline verify_shop_tiny --set seed=$seed; done
    python benchmarks/verify_shop_tiny.py
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wm_plugin.recipes.pipelines.verify_shop import MODEL, markdown

from stamps import stamp
from tables import interval, verdict
from tables import markdown as rows_of

RESULTS = Path(__file__).parent / "results" / "verify_shop_tiny.json"
SEEDS = (0, 1, 2)
INTRODUCTION = """\
# Checks before a purchase, by a tiny world model

A careless shopper (scripted, ours: three attempts in four have a mistake) plays 96 held-out tasks of the shop with 0, 2, 4, 10
and 50 checks an episode, by a world model of 1M parameters that was trained from scratch on 1,200 rollouts in which purchases
fail, and by controls in its place: `refuse` (always), `coin`, and `oracle` (the real shop). To accept always is a budget of 0. A
purchase that is refused brings the shopper back to the search page, where it begins anew: each attempt succeeds as often as
the first one, so that to be refused helps nobody by itself. The seed is that of the tasks, the shopper's draws, the model and
its training. `wm lab pipeline verify_shop_tiny` (and with `--set seed=1`, `--set seed=2`), then
`python benchmarks/verify_shop_tiny.py`.

Written down before the run. Question: does the world model's word bring more than a control's that knows nothing, at the same
budget? n: three seeds of 96 tasks; nothing was chosen on them, and the recipe's training is that of before. Rule: the mean over
seeds of the difference in success, paired by task, and its 95% interval over seeds (Student's t); one that contains 0 is null.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/verify_shop_tiny"), help="(default: runs/verify_shop_tiny)"
    )
    folder = parser.parse_args().runs
    found = {seed: folder / f"s{seed}" / "table.json" for seed in SEEDS}
    records = [{"seed": seed, **json.loads(path.read_text())} for seed, path in found.items() if path.exists()]
    RESULTS.write_text(json.dumps(records, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(tables(records))
    stamp(RESULTS, {"seeds": SEEDS})


def tables(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: all seeds, then seed by seed."""
    by_seed = [{(row["adviser"], row["budget"]): row for row in one["rows"]} for one in records]
    rows = []
    for adviser, budget in by_seed[0]:
        of = [one[adviser, budget] for one in by_seed]
        success = [row["success"]["value"] for row in of]
        cells = [_over(of, "against_0"), _over(of, "model_against_it")]
        rows.append([adviser, str(budget), f"{sum(success) / len(success):.3f}", *cells])
    seeds = [one["seed"] for one in records]
    lines = [INTRODUCTION, f"## Seeds {', '.join(map(str, seeds))}\n"]
    if missing := [seed for seed in SEEDS if seed not in seeds]:
        lines += [
            f"Not run to their end yet: seeds {', '.join(map(str, missing))}. Nothing is said over seeds before.\n"
        ]
    lines += rows_of(["who checks", "budget", "success, mean", "against 0", f"{MODEL} against it"], rows)
    for one in records:
        lines += [f"## Seed {one['seed']}\n", markdown(one)]
    return "\n".join(lines)


def _over(of: Sequence[dict[str, Any]], name: str) -> str:
    values = [row[name]["value"] for row in of if row[name] is not None]
    if len(values) < 2:
        return "–" if not values else f"{values[0]:+.3f}"
    mean, half = interval(values)
    return f"{mean:+.3f} ± {half:.3f} ({verdict(mean, half)})"


if __name__ == "__main__":
    main()
