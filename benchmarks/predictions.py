"""Does a reward for predictions inside an episode help a policy in a tiny world, by GRPO on TRL's own trainer?

The world is a row of 8 cells with walls (#) and ice (~), on which one slides on; L and R take a step, U and D jump over a cell.
A policy of 0.15M parameters, cloned from demonstrations that are half random, writes the row that it expects,
`<p>..A~#..G></p>`, and moves. Layouts are held out.

Arms, from one start a seed: `none` (coefficient 0), `turn` (exact, coefficient 0.5, as an advantage of the turn), and `other`,
the control: the same, but each prediction is scored against the observation of another turn, drawn at random.

Written before the runs. Measure: success on 200 held-out rows after training, sampled at temperature 1. n = 5 seeds, paired.
Rule: there is an effect if Student's 95% interval of `turn` - `none` excludes 0, else the result is null. Likewise, beside it:
the share of exact predictions in those episodes, of `turn` - `none` and `turn` - `other`.

Two settings. `fast` has 40 steps at a learning rate of 6e-4; within a few of them no arm predicted right any more, and there was
nothing to reward. `slow`, declared after that, has 80 steps at 1e-4, chosen on seed 91 (40 steps), which is not reported.

    python benchmarks/predictions.py       # half an hour: each setting, seeds 1 to 5, into results/predictions.*
"""

import argparse
import copy
import json
import random
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig

from stamps import headed, stamp
from stamps import read as stamps
from tables import interval, markdown, verdict
from wm_plugin.hosting.predictions import predicted
from wm_plugin.lab.tiny.policy import ACTIONS, make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import HEADS, OBSERVATION, POLICY, PREDICTION, TAG, encode, train
from wm_plugin.trl.trainer import WorldModelGRPOTrainer

RESULTS = Path(__file__).parent / "results" / "predictions.json"
CELLS, MAX_TURNS = 8, 5
WAYS = {"L": -1, "R": 1, "U": 2, "D": -2}
GROUPS, GENERATIONS, COEFF = 6, 8, 0.5
SETTINGS = {"fast": {"steps": 40, "rate": 6e-4}, "slow": {"steps": 80, "rate": 1e-4}}
CLONING, DEMONSTRATIONS, HELD_OUT = 200, 3000, 200
TURN = 3 + CELLS + 1 + 4 + 1  # tokens of a turn
MEASURES = ("success", "exact")


def moved(terrain: str, place: int, direction: str) -> int:
    """The cell that a move ends on."""
    way = WAYS[direction]
    to, step = place + way, way // abs(way)
    if not 0 <= to < CELLS or terrain[to] == "#":
        return place
    while terrain[to] == "~" and 0 <= to + step < CELLS and terrain[to + step] != "#":
        to += step
    return to


class IceEnvironment:
    """One episode: at most five moves; reward 1 for reaching the goal."""

    observer = "environment"
    max_turns = MAX_TURNS

    def reset(self, terrain: str, start: int, goal: int, **_: Any) -> str:
        self.terrain, self.place, self.goal = terrain, start, goal
        self.turns, self.success = 0, False
        return self._row()

    def move(self, direction: str) -> str:
        """Move.

        Args:
            direction: L, R, U or D.

        Returns:
            The row.
        """
        if not self.over and direction in WAYS:
            self.turns += 1
            self.place = moved(self.terrain, self.place, direction)
            self.success = self.place == self.goal
        return self._row()

    def get_reward(self) -> float:
        return float(self.success)

    @property
    def over(self) -> bool:
        return self.success or self.turns >= MAX_TURNS

    def _row(self) -> str:
        cells = list(self.terrain)
        cells[self.goal] = "G"
        cells[self.place] = "P" if self.success else "A"
        return "".join(cells) + ("!" if self.over else ">")


def distances(terrain: str, goal: int) -> dict[int, int]:
    """Moves to the goal from each cell that reaches it."""
    found = {goal: 0}
    for _ in range(CELLS):
        for place in range(CELLS):
            ways = [found[to] for way in WAYS if (to := moved(terrain, place, way)) in found]
            if terrain[place] != "#" and ways:
                found[place] = min(found.get(place, 99), 1 + min(ways))
    return found


def make_rows(count: int, seed: int, *, held_out: bool = False) -> list[dict[str, Any]]:
    rng = random.Random(2 * seed + held_out)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        terrain = "".join(rng.choices(".~#", [6, 3, 1], k=CELLS))
        free = [place for place, cell in enumerate(terrain) if cell == "."]
        if len(free) < 2 or (zlib.crc32(terrain.encode()) % 5 == 0) != held_out:
            continue
        start, goal = rng.sample(free, 2)
        if distances(terrain, goal).get(start, 99) <= MAX_TURNS - 1:
            prompt = [{"role": "user", "content": ""}]
            rows.append({"prompt": prompt, "terrain": terrain, "start": start, "goal": goal})
    return rows


def demonstrate(row: dict[str, Any], rng: random.Random) -> list[str]:
    world = IceEnvironment()
    parts = [world.reset(**row)]
    far = distances(world.terrain, world.goal)
    while not world.over:
        here = far.get(world.place, 99)
        best = [way for way in WAYS if far.get(moved(world.terrain, world.place, way), 99) < here]
        way = rng.choice(best or list(WAYS)) if rng.random() < 0.5 else rng.choice(list(WAYS))
        parts += [way, world.move(way)]
    return parts


def clone(model: Any, tokenizer: Any, seed: int) -> None:
    """Clone demonstrations in place: moves, predictions and half of the observations' loss, each the mean over its own tokens."""
    rng = random.Random(seed)
    ids, kinds = encode(
        tokenizer, [demonstrate(row, rng) for row in make_rows(DEMONSTRATIONS, seed)], end=True, predicts=True
    )

    def loss(tokens: Tensor, kind: Tensor) -> Tensor:
        logits, targets, kind = model(input_ids=tokens[:, :-1]).logits, tokens[:, 1:], kind[:, 1:]
        parts = [cross_entropy(logits[kind == one], targets[kind == one]) for one in (POLICY, PREDICTION, OBSERVATION)]
        return parts[0] + parts[1] + 0.5 * parts[2]

    for _ in train(model, ids, kinds, loss, steps=CLONING, batch=32, rate=3e-3, seed=seed):
        pass


class OtherTurn:
    """Exact match with the observation of another turn of the batch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def __call__(self, predictions: Sequence[str], targets: Sequence[str], **_: Any) -> list[float]:
        others = [(row + self.rng.randrange(1, max(len(targets), 2))) % len(targets) for row in range(len(targets))]
        return [float(text == targets[other]) for text, other in zip(predictions, others, strict=True)]


def arms(seed: int) -> dict[str, dict[str, Any]]:
    return {"none": {"coeff": 0}, "turn": {"coeff": COEFF}, "other": {"coeff": COEFF, "reward": OtherTurn(seed)}}


def trainer_of(
    model: Any, tokenizer: Any, prediction: dict[str, Any], seed: int, folder: str, setting: dict[str, Any]
) -> Any:
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
        max_steps=setting["steps"],
        per_device_train_batch_size=GROUPS * GENERATIONS,
        per_device_eval_batch_size=HELD_OUT,
        num_generations=GENERATIONS,
        num_generations_eval=1,
        max_completion_length=(TURN + CELLS + 2) * MAX_TURNS + 2,
        generation_kwargs={"max_new_tokens": TURN},
        max_tool_calling_iterations=MAX_TURNS,
        beta=0.0,
        loss_type="dapo",
        learning_rate=setting["rate"],
        lr_scheduler_type="linear",
        adam_beta2=0.95,
        weight_decay=0.0,
    )
    options = {"tag": TAG, "ask": False, **prediction}
    trainer = WorldModelGRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(make_rows(setting["steps"] * GROUPS, 1_000 + seed)),
        eval_dataset=Dataset.from_list(make_rows(HELD_OUT, 7_000, held_out=True)),
        processing_class=tokenizer,
        environment_factory=predicted(IceEnvironment, **options),
        reward_funcs=[],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def evaluate(model: Any, tokenizer: Any, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        figures = trainer_of(copy.deepcopy(model), tokenizer, {"coeff": 0}, seed, folder, SETTINGS["fast"]).evaluate()
    found = {"success": "success", "exact": "prediction/score", "written": "prediction/share", "turns": "turns"}
    return {name: round(figures[f"eval_wm/env/{figure}"], 4) for name, figure in found.items()}


def run_seed(seed: int, setting: str) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed, HEADS)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *tokenizer(ACTIONS).input_ids]
    began = time.process_time()
    clone(model, tokenizer, seed)
    start = copy.deepcopy(model.state_dict())
    record: dict[str, Any] = {"setting": setting, "seed": seed, "training": {}}
    record["held_out"] = {"start": evaluate(model, tokenizer, seed)}
    for name, prediction in arms(seed).items():
        own = make_model(tokenizer, seed, HEADS)
        own.load_state_dict(start)
        own.generation_config = copy.deepcopy(model.generation_config)
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(own, tokenizer, prediction, seed, folder, SETTINGS[setting])
            trainer.train()
            logs = [log for log in trainer.state.log_history if "reward" in log]
        record["training"][name] = {
            "success": [round(log["wm/env/success"], 4) for log in logs],
            "score": [round(log["wm/env/prediction/score"], 4) for log in logs],
        }
        fresh = make_model(tokenizer, seed, HEADS)
        fresh.load_state_dict(own.state_dict())
        fresh.generation_config = copy.deepcopy(model.generation_config)
        record["held_out"][name] = evaluate(fresh, tokenizer, seed)
        print(f"{setting}, seed {seed}, {name}: {record['held_out'][name]}", flush=True)
    return record | {"cpu_seconds": round(time.process_time() - began, 1)}


def table(records: Sequence[dict[str, Any]]) -> str:
    lines = [f"# {(__doc__ or '').strip()}", ""]
    for setting, sizes in SETTINGS.items():
        own = [one for one in records if one["setting"] == setting]
        if len(own) < 2:
            continue
        means, pairs = [], []
        for name in ("start", "none", "turn", "other"):
            figures = [statistics.mean(one["held_out"][name][measure] for one in own) for measure in MEASURES]
            means.append([name, *(f"{figure:.3f}" for figure in figures)])
        for one, other in (("turn", "none"), ("turn", "other"), ("other", "none")):
            cells = [f"{one} − {other}"]
            for measure in MEASURES:
                mean, half = interval([r["held_out"][one][measure] - r["held_out"][other][measure] for r in own])
                cells.append(f"{mean:+.3f} ± {half:.3f}, {verdict(mean, half)}")
            pairs.append(cells)
        seconds = sum(one["cpu_seconds"] for one in own)
        lines += [
            f"## `{setting}`: {sizes['steps']} steps at {sizes['rate']:g}",
            "",
            f"n = {len(own)} seeds, {seconds:.0f} CPU seconds. Means on held-out rows; paired differences with 95% intervals.",
            "",
            *markdown(["", "success", "exact predictions"], [*means, *pairs]),
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5], help="none writes the tables alone")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=[*SETTINGS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    records = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for setting in options.settings if options.seeds else ():
        for seed in options.seeds:
            records = [one for one in records if (one["setting"], one["seed"]) != (setting, seed)]
            records = sorted([*records, run_seed(seed, setting)], key=lambda one: (one["setting"], one["seed"]))
            RESULTS.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
        stamp(RESULTS, SETTINGS[setting], [f"{setting} {seed}" for seed in options.seeds])
    RESULTS.with_suffix(".md").write_text(headed(table(records), stamps()[RESULTS.stem]))


if __name__ == "__main__":
    main()
