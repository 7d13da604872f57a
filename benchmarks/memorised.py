"""Does the term overfit where a tool's results can only be learnt by heart, and not where they follow rules?

Written before the runs. ECHO's authors conclude that their objective works best on results that follow an algorithm; on web
pages it overfits after about one epoch. Two worlds, and TRL's real trainer with the term alone (`policy_loss` is off), epoch
after epoch on the same 32 tasks. Tool calls are scripted, so that results alone are learnt, by a model of random weights:

  docs   pages of Python's documentation. A task names a page and a line, and the call opens it; memory alone predicts the text
  grid   4x4 boards with walls. The call moves, and the next board follows from the last one and the move

Measure: the NLL of tool results in 32 other tasks (`unseen`), in nats a token. `rise` is its value after 60 epochs less that
after 20. `seen` is the NLL of the training tasks, for comparison.
Rule, over n = 5 seeds: the rise of each world, and the difference between the worlds paired by seed, with Student's 95% interval;
one that contains 0 is null. Their conclusion would make the difference higher than 0.
Seeds from 20 on: the learning rate and the epochs were chosen on seed 0.

    python benchmarks/memorised.py                               # 16 CPU minutes: adds each seed to results/memorised.*
    python benchmarks/memorised.py --seeds 0 --out try.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from agent_sft_135m import read
from grid_135m import cpu_seconds
from stamps import headed, stamp
from stamps import read as stamps
from support.on_trl import call, make, make_model, series
from tables import interval, markdown, verdict
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds import docs, grid

RESULTS = Path(__file__).parent / "results" / "memorised.json"
SETTINGS = {"tasks": 32, "epochs": 60, "early": 20, "every": 5, "learning_rate": 3e-3}
PROMPTS, GENERATIONS = 8, 2  # of a step
MOVES = 4  # of an episode in the grid


class Scripted(WorldModelGRPOTrainer):
    """Opens the page that the task names, or moves anywhere."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turns = [self._turn(self.processing_class.decode(ids)) for ids in prompt_ids]
        return [self.processing_class(f"{turn}<|im_end|>").input_ids for turn in turns], None

    def _turn(self, text: str) -> str:
        done = text.count("<tool_response>")
        if "page " in text:
            page, line = text.rpartition("page ")[2].split()[:2]
            return "read" if done else call("open_lines", page=page, lines=f"{line}-{int(line) + 2}")
        return "moved" if done == MOVES else call("move", direction="UDLR"[int(torch.randint(4, ()))])


def pages(count: int, seed: int, split: str) -> Dataset:
    rows = docs.dataset_rows(count, seed=seed, split=split)
    for number, row in enumerate(rows):
        row["prompt"] = [{"role": "user", "content": f"page {row['page']} {2 + 3 * (number % 4)} "}]
    return Dataset.from_list(rows)


def boards(count: int, seed: int, split: str) -> Dataset:
    return Dataset.from_list(grid.dataset_rows(count, seed=seed, held_out=split == "unseen"))


WORLDS: dict[str, tuple[Any, Any]] = {"docs": (docs.DocsEnvironment, pages), "grid": (grid.GridEnvironment, boards)}


def train(world: str, seed: int) -> dict[str, list[float]]:
    """The NLL of seen and unseen tasks before training, and after every fifth epoch."""
    environment, rows = WORLDS[world]
    tasks = rows(SETTINGS["tasks"], seed, "train")
    steps = SETTINGS["tasks"] // PROMPTS  # of an epoch
    trainer = make(
        Scripted,
        environment=environment,
        rows=tasks,
        eval_dataset={"seen": tasks, "unseen": rows(SETTINGS["tasks"], seed, "unseen")},
        world_model=EchoConfig(1.0, policy_loss=False),
        args={
            "max_steps": steps * SETTINGS["epochs"],
            "per_device_train_batch_size": PROMPTS * GENERATIONS,
            "per_device_eval_batch_size": PROMPTS * GENERATIONS,
            "num_generations": GENERATIONS,
            "gradient_accumulation_steps": 1,
            "max_completion_length": 500,
            "learning_rate": SETTINGS["learning_rate"],
            "eval_strategy": "steps",
            "eval_steps": steps * SETTINGS["every"],
            "eval_on_start": True,
            "seed": seed,
        },
    )
    trainer.model.load_state_dict(make_model(trainer.processing_class, seed=seed).state_dict())
    torch.manual_seed(seed)
    trainer.train()
    return {split: series(trainer, f"eval_{split}_echo/nll") for split in ("seen", "unseen")}


def page(records: list[dict[str, Any]]) -> str:
    early, last = SETTINGS["early"] // SETTINGS["every"], -1
    rises = {world: [one[world]["unseen"][last] - one[world]["unseen"][early] for one in records] for world in WORLDS}
    found = {**rises, "docs - grid": [there - here for there, here in zip(rises["docs"], rises["grid"], strict=True)]}
    means = []
    for name, values in found.items() if len(records) > 1 else ():
        mean, half = interval(values)
        means.append([name, str(len(values)), f"{mean:+.3f} ± {half:.3f}", verdict(mean, half)])
    epochs = range(0, SETTINGS["epochs"] + 1, SETTINGS["every"])
    listed = [
        [str(one["seed"]), world, split, *(f"{nll:.2f}" for nll in one[world][split])]
        for one in records
        for world in WORLDS
        for split in ("seen", "unseen")
    ]
    minutes = sum(one["cpu_seconds"] for one in records) / 60
    return "\n".join(
        [
            f"# {(__doc__ or '').strip()}\n",
            f"{minutes:.0f} CPU minutes in all.\n",
            *markdown(["rise in", "n", "nats a token", "by the rule"], means),
            "NLL in nats a token, after so many epochs:\n",
            *markdown(["seed", "world", "tasks", *map(str, epochs)], listed),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[20, 21, 22, 23, 24], help="none: the tables alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        began = cpu_seconds()
        figures = {world: train(world, seed) for world in WORLDS}
        records = [one for one in read(options.out) if one["seed"] != seed]
        records.append({"seed": seed, **figures, "cpu_seconds": round(cpu_seconds() - began)})
        options.out.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
        stamp(options.out, SETTINGS)
    text = page(read(options.out))
    known = stamps().get(options.out.stem)
    options.out.with_suffix(".md").write_text(headed(text, known) if known and options.out == RESULTS else text)


if __name__ == "__main__":
    main()
