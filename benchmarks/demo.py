"""Runs `wm demo` with several seeds, which its own intervals do not cover: each has its own model, training boards and rollouts.

Adds a run's figures to benchmarks/results/demo.json, and writes the tables, demo.md, of all runs that are there. A seed that is
there is not run again, so that a run which was cut goes on.

    python benchmarks/demo.py                 # the declared seeds, one after the other: half an hour of one core
    python benchmarks/demo.py --seeds         # the tables alone
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from stamps import headed, stamp
from stamps import read as stamps
from tables import interval, markdown, verdict

RESULTS = Path(__file__).parent / "results" / "demo.json"
SEEDS = tuple(range(20, 28))
START, ALONE, KEPT = POLICIES = ("start", "coeff 0", "coeff 0.05")
NAMES = {START: "before RL", ALONE: "RL alone", KEPT: "with the objective"}
MEASURES = {
    "success": "task success",
    "exact": "next observation exact",
    "env_nll": "environment NLL",
    "plain": "success, {ahead} boards",
    "coin": "by a coin",
    "ahead": "looking ahead",
    "oracle": "in the real world",
    "turns": "turns",
}
# Written before the first of these runs, and not changed since.
DECLARED = """\
- Question: what does the objective change, at the advised coefficient (.05) against 0? First task success; then what the policy
  knows of its world; then what that is good for.
- Measures, all on held-out wall layouts: success on {boards} boards, sampled; the share of next observations predicted exactly on
  {walks} random walks, and the environment NLL there (nats a token); success on {ahead} of the boards when the policy looks ahead
  with itself.
- n: seeds {first} to {last}, in this order. The settings were chosen on seed 101, on other boards.
  No run is left out, stopped early or repeated; a seed whose warm start fails stays in.
- Before: the same was declared for seeds 10 to 17 with a shorter warm start (at most 400 steps, to .9; now at most 600, to
  .95). It was given up after seed 10, whose warm start had failed, at .77. Its figures, before RL, after RL alone and with the
  objective: success .46, .54, .50; exact .54, .20, .39; looking ahead .30, .16, .27.
- Rule: the difference between the arms, paired by seed, with the 95% interval of Student's t. It is called higher or lower where
  the interval leaves out 0, else null. With fewer than {n} seeds nothing is called anything.
- Controls of looking ahead: plain sampling, a coin's word on each imagined episode, and the real world in place of the predicted
  one (only the moves are imagined). The coin is one draw for all seeds, whose standard error over 64 boards, about .06, is in no
  interval.
- Arithmetic: the plainest instructions and one thread, so that `wm demo --seed {first}` gives the first row to the digit on every
  x86 processor with these versions; a nightly test compares them.
"""
INTRODUCTION = """\
# The demo, seed by seed

`python benchmarks/demo.py` runs `wm demo` and writes this. Seeds that have ended: {seeds}.

{declared}
Looking ahead: before each move the policy imagines {episodes} episodes a move with its own predictions, and takes the first move
whose episodes reach the goal most and soonest; where none does, it moves as it would without.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    options = parser.parse_args()
    made = {one["seed"] for one in read()}
    for seed in [seed for seed in options.seeds if seed not in made]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "wm_plugin", "demo", "--seed", str(seed), "--out", folder, "--json"]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            new = record(json.loads(said.splitlines()[-1]))
        records = sorted([*read(), new], key=lambda one: one["seed"])
        RESULTS.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
        print(f"seed {seed}: {new['cpu_seconds']['all']} CPU seconds", flush=True)
        stamp(RESULTS, {}, [str(seed)])
    RESULTS.with_suffix(".md").write_text(headed(tables(read()), stamps()[RESULTS.stem]))


def read() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def record(result: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a run's `result.json`."""
    first, look_ahead = result["arms"][0], result["look_ahead"]
    measured = ("exact", "env_nll", "success", "turns")
    figures = {"start": {name: first[f"{name}_start"] for name in measured}}
    for arm in result["arms"]:
        figures[f"coeff {arm['coeff']:g}"] = {name: arm[f"{name}_end"] for name in measured}
    return {
        "seed": result["seed"],
        "figures": {
            name: {measure: round(value, 4) for measure, value in (own | look_ahead["figures"][name]).items()}
            for name, own in figures.items()
        },
        "claims": [
            {key: round(claim[key], 4) if key in ("difference", "low", "high") else claim[key] for key in CLAIM}
            for claim in [one for one in result["claims"] if one["against"].startswith("RL alone")]
            + look_ahead["claims"]
        ],
        "warm_start": {key: round(value, 3) for key, value in result["warm_start"].items()},
        "steps": result["steps"],
        "kernels": result["kernels"],
        "boards": result["boards"],
        "ahead_boards": look_ahead["boards"],
        "episodes_a_move": look_ahead["episodes_a_move"],
        "cpu_seconds": {
            "all": round(result["cpu_seconds"]),
            "warm start": round(result["warm_start"]["cpu_seconds"]),
            **{f"coeff {arm['coeff']:g}": round(arm["cpu_seconds"]) for arm in result["arms"]},
            "looking ahead": round(look_ahead["cpu_seconds"]),
        },
        "versions": {name: metadata.version(name) for name in ("trl", "transformers", "torch")}
        | {"python": platform.python_version(), "machine": platform.machine()},
    }


CLAIM = ("measure", "of", "against", "difference", "low", "high", "verdict")


def tables(records: list[dict[str, Any]]) -> str:
    """Markdown: the declaration, over seeds, differences paired by seed, seed by seed, and the warm starts."""
    one = records[0]
    names = {key: label.format(ahead=one["ahead_boards"]) for key, label in MEASURES.items()}
    declared = DECLARED.format(
        boards=one["boards"], walks=one["boards"] // 2, ahead=one["ahead_boards"], first=SEEDS[0], last=SEEDS[-1],
        n=len(SEEDS),
    )  # fmt: skip
    seeds = ", ".join(str(one["seed"]) for one in records)
    lines = [INTRODUCTION.format(seeds=seeds, declared=declared, episodes=one["episodes_a_move"])]
    lines += ["## Over seeds: mean (lowest to highest)\n"]
    lines += markdown(
        ["policy", *names.values()],
        [[NAMES[policy], *(_spread(values(records, policy, one)) for one in MEASURES)] for policy in POLICIES],
    )
    lines += ["## Differences, paired by seed: mean ± 95% interval (Student's t)\n"]
    lines += markdown(["", "difference", "verdict"], [[name, *compared(records, *pair)] for name, *pair in PAIRS])
    lines += ["## Seed by seed\n"]
    lines += markdown(
        ["seed", "policy", *names.values()],
        [
            [str(one["seed"]), NAMES[policy], *(f"{one['figures'][policy][measure]:.3f}" for measure in MEASURES)]
            for one in records
            for policy in POLICIES
        ],
    )
    lines += ["## What each demo says: 99% intervals over boards\n"]
    lines += markdown(
        ["seed", "measure", "", "against", "difference", "interval", "verdict"],
        [
            [str(one["seed"]), claim["measure"], claim["of"], claim["against"], f"{claim['difference']:+.3f}",
             f"{claim['low']:+.3f} to {claim['high']:+.3f}", claim["verdict"]]
            for one in records
            for claim in one["claims"]
        ],
    )  # fmt: skip
    lines += ["## Warm starts and cost\n"]
    wanted = one["warm_start"]["exact_wanted"]
    short = [str(one["seed"]) for one in records if one["warm_start"]["exact_reached"] < wanted]
    lines += [
        f"Exact prediction on validation boards when the first stage ends; wanted: {wanted}. Seeds that did not reach it, and "
        f"stay in: {', '.join(short) or 'none'}.\n"
    ]
    parts = list(one["cpu_seconds"])
    lines += markdown(
        ["seed", "exact prediction", *(f"CPU s, {part}" for part in parts)],
        [
            [
                str(one["seed"]),
                f"{one['warm_start']['exact_reached']:.2f}",
                *(str(one["cpu_seconds"][part]) for part in parts),
            ]
            for one in records
        ],
    )
    versions = {", ".join(f"{name} {number}" for name, number in one["versions"].items()) for one in records}
    return "\n".join([*lines, f"Versions: {'; '.join(sorted(versions))}.", ""])


def values(records: list[dict[str, Any]], policy: str, measure: str) -> list[float]:
    return [one["figures"][policy][measure] for one in records]


def compared(
    records: list[dict[str, Any]], of: tuple[str, str], against: tuple[str, str], *, points: bool = False
) -> tuple[str, str]:
    """The mean difference of two (policy, measure), paired by seed, with its interval, and what it is called."""
    both = zip(values(records, *of), values(records, *against), strict=True)
    differences = [one - other for one, other in both]
    scale, digits, unit = (100, 0, " points") if points else (1, 3, "")
    if len(differences) < 2:
        return f"{scale * differences[0]:+.{digits}f}{unit}", "one seed"
    mean, half = interval(differences)
    called = verdict(mean, half) if len(records) >= len(SEEDS) else "too few seeds"
    return f"{scale * mean:+.{digits}f} ± {scale * half:.{digits}f}{unit}", called


PAIRS = [
    (f"{MEASURES[measure]}: {NAMES[of]} against {NAMES[against]}", (of, measure), (against, measure))
    for measure in ("success", "exact", "env_nll", "ahead")
    for of, against in ((KEPT, ALONE), (KEPT, START), (ALONE, START))
]
PAIRS += [
    (f"{NAMES[policy]}: looking ahead against {other}", (policy, "ahead"), (policy, control))
    for policy in POLICIES
    for control, other in (("plain", "not"), ("coin", "a coin"), ("oracle", "the real world"))
]


def _spread(found: list[float]) -> str:
    return f"{sum(found) / len(found):.2f} ({min(found):.2f} to {max(found):.2f})"


if __name__ == "__main__":
    main()
