"""WMAct's ablation (its table 3, and the step penalty of table 4) in a tiny world, by GRPO on TRL's own trainer.

Each seed has a policy, a warm start, and boards of its own, which its variants share. Adds a seed's figures to
benchmarks/results/wmact.json, and writes the tables, wmact.md, and the curves, wmact.html, of all seeds that are there.

    python benchmarks/wmact.py                             # all variants, seeds 1 to 8: three quarters of an hour
    python benchmarks/wmact.py --seeds 9 10
    python benchmarks/wmact.py --variants '+ ECHO, 0.05'   # beside what is there of the seeds
    python benchmarks/wmact.py --seeds                     # the report alone
"""

import argparse
import copy
import json
import math
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig

from plans import (
    LEVELS,
    MAX_MOVES,
    MAX_TURNS,
    SIZE,
    TURN_TOKENS,
    PlanEnvironment,
    dataset_rows,
    make_boards,
    make_model,
    make_tokenizer,
    play,
    warm_start,
)
from stamps import stamp
from tables import interval, markdown, verdict
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.figures import summary
from wm_plugin.lab.report import Report, write
from wm_plugin.lab.report.chart import Curve, Series
from wm_plugin.objectives import EchoConfig
from wm_plugin.trl.trainer import WorldModelGRPOTrainer
from wm_plugin.worlds.wrappers.rewarded import rewarded

RESULTS = Path(__file__).parent / "results" / "wmact.json"
STEPS, GROUPS, GENERATIONS = 40, 8, 8
EVERY = 5  # steps, of the turn budget
HELD_OUT, HELD_OUT_SEED = 200, 61_000_003  # boards a level
TRAINING_SEED = 3_000_001  # GRPO plays on other boards than the warm start
KEPT = ("success", "turns", "actions", "effective_share", "single_turn_success")


@dataclass(frozen=True)
class Variant:
    max_turns: int = MAX_TURNS
    reward: Mapping[str, Any] = field(default_factory=dict)  # empty: the outcome alone
    anneal: bool = False
    coeff: float = 0.0


# a format penalty of 0, not the default of 0.1: variants are to differ in one setting each
RESCALED = {"rescale": True, "format_penalty": 0.0}
VARIANTS = {
    "entire plan": Variant(max_turns=1),
    "interactive": Variant(),
    "+ rescale": Variant(reward=RESCALED),
    "+ anneal": Variant(reward=RESCALED, anneal=True),
    "+ ECHO": Variant(reward=RESCALED, anneal=True, coeff=1.0),
    "+ ECHO, 0.05": Variant(reward=RESCALED, anneal=True, coeff=0.05),
    # for each action, which the paper's may not be
    "step penalty": Variant(reward={"rescale": False, "format_penalty": 0.0, "action_penalty": 0.1}),
    "step penalty, 0.01": Variant(reward={"rescale": False, "format_penalty": 0.0, "action_penalty": 0.01}),
}
SETTINGS = {
    "steps": STEPS,
    "groups": GROUPS,
    "generations": GENERATIONS,
    "every": EVERY,
    "held out": [HELD_OUT, HELD_OUT_SEED],
    "training seed": TRAINING_SEED,
    "variants": {name: asdict(variant) for name, variant in VARIANTS.items()},
}
PAIRS = [  # what the outcome alone does; what each step of the ablation adds, and the penalty in the place of rescaling
    ("interactive", "start"),
    ("interactive", "entire plan"),
    ("+ rescale", "interactive"),
    ("+ anneal", "+ rescale"),
    ("+ ECHO", "+ anneal"),
    ("+ ECHO, 0.05", "+ anneal"),
    ("step penalty", "interactive"),
    ("step penalty", "+ rescale"),
    ("step penalty, 0.01", "interactive"),
    ("step penalty, 0.01", "+ rescale"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(1, 9)))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    began = time.process_time()
    for seed in options.seeds:
        add(run_seed(seed, options.variants))
    print(f"{time.process_time() - began:.0f} CPU seconds in all")
    write_report(json.loads(RESULTS.read_text()))
    stamp(RESULTS, SETTINGS, [f"{seed}/{name}" for seed in options.seeds for name in options.variants])


def run_seed(seed: int, names: Sequence[str]) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    began = time.process_time()
    warm_start(model, tokenizer, seed)
    seconds = {"warm start": time.process_time() - began}
    held_out = {"start": evaluate(model, tokenizer)}
    training = {}
    for name in names:
        began, trained = time.process_time(), copy.deepcopy(model)
        training[name] = train(trained, tokenizer, VARIANTS[name], seed)
        held_out[name] = evaluate(trained, tokenizer)
        seconds[name] = time.process_time() - began
        print(f"seed {seed}, {name}: {seconds[name]:.0f} CPU seconds", flush=True)
    return {
        "seed": seed,
        "held_out": held_out,
        "training": training,
        "cpu_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "versions": {name: metadata.version(name) for name in ("trl", "transformers", "torch")}
        | {"python": platform.python_version()},
    }


def train(model: Any, tokenizer: Any, variant: Variant, seed: int, steps: int = STEPS) -> dict[str, list[float]]:
    """GRPO from `model`, in place; what the episodes of each step were like."""
    rows = dataset_rows(steps * GROUPS, TRAINING_SEED + seed, max_turns=variant.max_turns)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            seed=seed,
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            max_steps=steps,
            per_device_train_batch_size=GROUPS * GENERATIONS,
            num_generations=GENERATIONS,
            shuffle_dataset=False,
            max_completion_length=TURN_TOKENS * MAX_TURNS + 1,
            generation_kwargs={"max_new_tokens": MAX_MOVES},  # a turn
            max_tool_calling_iterations=None if variant.anneal else MAX_TURNS,
            beta=0.0,
            loss_type="dapo",
            learning_rate=6e-4,
            lr_scheduler_type="linear",
            warmup_steps=5,
            adam_beta2=0.95,
            weight_decay=0.0,
        )
        trainer = WorldModelGRPOTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=rewarded(PlanEnvironment, **variant.reward) if variant.reward else PlanEnvironment,
            reward_funcs=[],
            world_model=EchoConfig(coeff=variant.coeff) if variant.coeff else None,
            turn_budget=TurnBudget(start=MAX_TURNS, every=EVERY) if variant.anneal else None,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "reward" in log]
    return {name: [round(log.get(f"wm/env/{name}", 0.0), 4) for log in logs] for name in (*KEPT, "budget")} | {
        "reward": [round(log["reward"], 4) for log in logs]
    }


def evaluate(model: Any, tokenizer: Any, boards: int = HELD_OUT, seed: int = HELD_OUT_SEED) -> dict[str, Any]:
    found = {}
    for level in LEVELS:
        played = play(model, tokenizer, make_boards(boards, seed, level=level, held_out=True), seed)
        figures = summary(played, prefix="")
        found[level] = {name: round(figures.get(f"/{name}", 0.0), 4) for name in KEPT}
    return found


def add(new: dict[str, Any]) -> None:
    """Into the file, beside or in the place of what is there of the seed's variants, if those began from the same policy."""
    records = {one["seed"]: one for one in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])}
    if set(new["training"]) != set(VARIANTS):
        old = records.get(new["seed"])
        if old is None:
            raise SystemExit(f"there is nothing of seed {new['seed']} yet: run all of its variants")
        before, now = ((one["versions"], one["held_out"]["start"]) for one in (old, new))
        if before != now:
            raise SystemExit(f"seed {new['seed']} begins at {now}, and did at {before}: run all of its variants")
        new |= {part: old[part] | new[part] for part in ("held_out", "training", "cpu_seconds")}
    records[new["seed"]] = new
    records = [records[seed] for seed in sorted(records)]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")


MEASURES = {
    "single_turn_success": "single-turn success",
    "success": "multi-turn success",
    "turns": "turns",
    "actions": "actions",
    "effective_share": "effective share",
}
CURVES = {
    "success": "success",
    "single_turn_success": "success in the first turn",
    "effective_share": "effective share of actions",
    "actions": "actions an episode",
    "turns": "turns an episode",
    "budget": "turn budget",
    "reward": "reward (each variant has its own)",
}
INTRODUCTION = """\
# WMAct's ablation in a tiny world

`python benchmarks/wmact.py` trains by GRPO on TRL's own trainer (`WorldModelGRPOTrainer`, `environment_factory`) and writes this.
Curves over training are in `wmact.html`.

- World: {size}x{size} cells, walls that change with each board; a turn is a plan of up to {moves} moves, an episode at most
  {turns} turns. It ends with success as soon as the goal is walked over. A move into a wall changes nothing, and costs
  nothing under the outcome reward.
- Standard levels are 2 to 4 moves away, as in training; hard ones 5 to 8, which nothing is trained on. Held out by wall layout.
- Policy: a Qwen2 of 0.16M parameters. It starts from cloned demonstrations, about 4 in 10 of whose moves change nothing, on
  purpose, plus the loss on the boards between; the variants of a seed share this start and the training boards.
- Question: what does each step of the ablation change, when it is the only thing that changes? Rule: the 95% interval (Student's
  t) of the difference, paired by seed; one that contains 0 is null. n: the seeds 1 to 8. Question, rule and the seeds 1 to 5 were
  written down before the run, and no run of a seed was left out. Three had ended on 2026-11-24, when the machine was needed for
  other work, and were looked at. 4 and 5 followed on 2026-11-29, and 6 to 8 were added before those two were looked at, since the
  effects are small. Then 1 to 3 were measured again, whatever they would be, since an answer without an action had come to count
  as a turn; with their first figures fewer differences of rescaling and annealing left 0 out in success, and more in turns.
- {steps} steps of {groups} boards x {generations} episodes, learning rate 6e-4, the same for all. These settings are those of the
  first run (2026-11-22), which were chosen on seed 100 with other held-out boards; it is not here.
- Entire plan: trained with one turn. Interactive: {turns} turns, reward 1 for the goal. + rescale: times the share of
  effective actions. + anneal: and a turn budget that starts at {turns} and is set anew every {every} steps. + ECHO: and the
  world-model term, coefficient {coeff:g}, the demo's. Step penalty: interactive, less 0.1 an action. The format penalty is 0
  throughout, so that each variant differs from the one before it in one setting.
- The two variants with other numbers, the recipes' coefficient of 0.05 and a penalty of 0.01, were added in the first run after
  the others had been seen. No other learning rate, coefficient or penalty was tried.
- Annealed budgets are rounded up: one of L turns stays as it is while some episode takes them all and the mean is above L - 2.
- A turn without a move gives an episode up. It counts as one action that changes nothing: a reward of 0, or with a penalty for
  each action of -0.1 or -0.01 (and that of the moves before it). With a penalty of 0.1 and a dozen actions an episode (see the
  start), that is worth more than walking: the penalty has the paper's size, not this world's.
- Single turn: the policy is not told how many turns it has, so that the first turn of an episode is its single-turn
  evaluation. {held_out} boards a level, one sampled episode each.
"""


def write_report(records: list[dict[str, Any]]) -> None:
    """`wmact.md`, the tables, and `wmact.html`, the curves, of at least two seeds."""
    seeds = [one["seed"] for one in records]
    if len(seeds) < 2:
        return
    seconds = {name: sum(one["cpu_seconds"][name] for one in records) for name in records[0]["cpu_seconds"]}
    lines = [
        INTRODUCTION.format(
            size=SIZE, moves=MAX_MOVES, turns=MAX_TURNS, steps=STEPS, groups=GROUPS, generations=GENERATIONS,
            every=EVERY, coeff=VARIANTS["+ ECHO"].coeff, held_out=HELD_OUT,
        ),
        f"Seeds {', '.join(map(str, seeds))}; ± is a 95% interval (Student's t) over them.\n",
    ]  # fmt: skip
    for level in LEVELS:
        lines += table(records, level)
    lines += differences(records)
    lines += [
        "## Cost\n",
        f"{sum(seconds.values()) / 60:.0f} CPU minutes, evaluations included. Seconds of all seeds:\n",
    ]
    lines += [*markdown(list(seconds), [[f"{value:.0f}" for value in seconds.values()]])]
    versions = {", ".join(f"{name} {number}" for name, number in one["versions"].items()) for one in records}
    lines += [f"Versions: {'; '.join(sorted(versions))}."]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")
    curves = [
        Curve(f"Training: {label}", [Series(name, *mean_curve(records, name, measure)) for name in VARIANTS])
        for measure, label in CURVES.items()
    ]
    write(
        Report(
            title="WMAct's ablation in a tiny world",
            subtitle=f"GRPO on TRL, {STEPS} steps, the mean of seeds {', '.join(map(str, seeds))}",
            curves=curves,
            notes=["Each point is the mean of four steps: 256 episodes a seed.", "The tables are in wmact.md."],
        ),
        RESULTS.with_suffix(".html"),
    )


def measured(records: list[dict[str, Any]], name: str, level: str, measure: str) -> list[float]:
    """One value a seed, NaN where there is none: without actions none is effective, and none is not."""
    found = [one["held_out"][name][level] for one in records]
    return [math.nan if measure == "effective_share" and not one["actions"] else one[measure] for one in found]


def table(records: list[dict[str, Any]], level: str) -> list[str]:
    rows = []
    for name in ("start", *VARIANTS):
        cells = [interval(measured(records, name, level, measure)) for measure in MEASURES]
        rows.append([name, *("–" if math.isnan(mean) else f"{mean:.3f} ± {half:.3f}" for mean, half in cells)])
    return [f"## Held out, {level}\n", *markdown(["variant", *MEASURES.values()], rows)]


def differences(records: list[dict[str, Any]]) -> list[str]:
    """Pair by pair, level by level, measure by measure: the mean of one difference a seed."""
    rows, words = [], []
    for of, against in PAIRS:
        verdicts: dict[str, list[str]] = {}
        for level in LEVELS:
            for measure, label in MEASURES.items():
                both = [measured(records, name, level, measure) for name in (of, against)]
                found = [one - other for one, other in zip(*both, strict=True)]
                mean, half = interval(found)
                if math.isnan(mean):
                    rows.append([of, against, level, label, "–", "–", "not defined: no actions"])
                    continue
                ups = f"{sum(value > 0 for value in found)} of {len(found)}"
                rows.append([of, against, level, label, f"{mean:+.3f} ± {half:.3f}", ups, verdict(mean, half)])
                verdicts.setdefault(verdict(mean, half), []).append(f"{label} ({level}, {mean:+.3f})")
        found_words = "; ".join(f"{kind}: {', '.join(verdicts[kind])}" for kind in sorted(verdicts))
        words.append(f"- **{of}** against **{against}**. {found_words}.")
    count = sum(row[4] != "–" for row in rows)
    chance = (
        f"Paired by seed. Of {count} intervals of 95%, {0.05 * count:.0f} or so would leave 0 out by chance alone.\n"
    )
    header = ["variant", "against", "level", "measure", "difference", "seeds higher", "verdict"]
    return ["## Differences\n", chance, *words, "", *markdown(header, rows)]


def mean_curve(
    records: list[dict[str, Any]], name: str, measure: str, window: int = 4
) -> tuple[list[int], list[float]]:
    """Steps, and the mean over seeds and the `window` steps up to each."""
    mean = [
        statistics.fmean(values) for values in zip(*(one["training"][name][measure] for one in records), strict=True)
    ]
    steps = list(range(window, len(mean) + 1, window))
    return steps, [statistics.fmean(mean[step - window : step]) for step in steps]


if __name__ == "__main__":
    main()
