"""What the world-model term costs of whole steps of verl's main_ppo, with a real pretrained model on the SQL tasks.

A step is all of it: rollouts in the world, the tokens' record and the columns, log-probabilities, the update. Runs with the term
(`wm.coeff=1`) and without (0, where nothing of ours runs: tests/on_verl/test_off.py) take turns, each from its own start. An
untrained policy makes no call: what it says is a script's, at the cost of sampling it, so that all runs have the same episodes,
which is checked. Wall seconds, since a step is the work of many processes: the machine must do nothing else. Writes
benchmarks/results/verl_whole_step.json. From .venv-verl:

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
    python benchmarks/verl_whole_step.py --model runs/smollm2_135m
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
import verl

from stamps import stamp

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.script_on_verl import variables
from wm_plugin.verl.data import verl_rows, write
from wm_plugin.worlds.sql import dataset_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ARMS = {"stock": "0", "ours": "1.0"}
PARTS = {"step": "timing_s/step", "rollout": "timing_s/gen", "update": "timing_s/update_actor"}
QUERIES = ["SELECT name FROM employees", "SELECT * FROM orders WHERE id < 4", "SELECT nme FROM products WHERE id = 2"]
CALL = '<tool_call>{{"name": "run_query", "arguments": {{"query": "{}"}}}}</tool_call><|im_end|>'
SCRIPT = [*map(CALL.format, QUERIES), "I am done.<|im_end|>"]
SAME = ("response_length/mean", "prompt_length/mean", "num_turns/mean")  # of the same step of both arms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder that python -m wm_plugin.lab.tiny pretrained wrote"
    )
    parser.add_argument("--steps", type=int, default=6, help="of a run, of which the first does not count (default: 6)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each arm (default: 2)")
    parser.add_argument("--completions", type=int, default=2, help="of a step (default: 2)")
    parser.add_argument("--out", type=Path, default=RESULTS / "verl_whole_step.json")
    options = parser.parse_args()
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    for turn in range(options.rounds):
        for name in sorted(ARMS, reverse=bool(turn % 2)):
            steps[name] += run(ARMS[name], options)
            print(f"{name}: {statistics.median(one[PARTS['step']] for one in steps[name]):.1f} s a step", flush=True)
        for mine, stock in zip(steps["ours"], steps["stock"], strict=True):
            if different := [key for key in SAME if mine[key] != stock[key]]:
                raise SystemExit(f"the arms did not have the same episodes: {different[0]} differs")
    result = {
        "question": "wall seconds of a whole step of main_ppo, with the term against the same step without, in turn",
        "device": f"CPU ({platform.machine()}), {os.cpu_count()} cores",
        "versions": {"torch": torch.__version__, "verl": verl.__version__, "transformers": transformers.__version__},
        "model": "SmolLM2-135M-Instruct",
        "completions": options.completions,
        "response_tokens_mean": statistics.mean(one["response_length/mean"] for one in steps["ours"]),
        "environment_tokens_a_step": statistics.mean(one["echo/tokens"] for one in steps["ours"]),
        "pairs": len(steps["ours"]),
        "parts": [ratios(steps["ours"], steps["stock"], part) for part in PARTS],
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    stamp(options.out, vars(options))
    for row in result["parts"]:
        low, high = row["ratio_quartiles"]
        print(f"{row['part']:8} {row['stock_seconds_median']:8.2f} s  {row['ratio_median']:.4f} ({low:.4f}-{high:.4f})")


def run(coeff: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """The logged metrics of a run's steps, but for its first, which compiles and reads files."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, rows, script = (Path(folder) / name for name in ("metrics.jsonl", "rows.parquet", "script.json"))
        write(verl_rows(dataset_rows(options.steps), "sql"), rows)
        script.write_text(json.dumps(SCRIPT))
        command = [
            *(sys.executable, "-m", "verl.trainer.main_ppo", "--config-path", "pkg://wm_plugin.recipes.verl"),
            *("--config-name", "echo_sql_135m", f"wm.coeff={coeff}"),
            *(f"data.train_files={rows}", f"data.val_files={rows}", "data.shuffle=false"),
            *("data.train_batch_size=1", "actor_rollout_ref.actor.ppo_mini_batch_size=1"),
            f"actor_rollout_ref.rollout.n={options.completions}",
            *(f"actor_rollout_ref.model.path={options.model.resolve()}", "actor_rollout_ref.actor.optim.lr=0"),
            *(f"trainer.total_training_steps={options.steps}", "trainer.save_freq=-1", "trainer.logger=[file]"),
            f"trainer.default_local_dir={folder}/checkpoints",
        ]
        environment = {
            **os.environ,
            **variables(script),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "VERL_PLATFORM": "cpu",
            "VERL_FILE_LOGGER_PATH": str(metrics),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray's own is 15, with which anything else on the machine comes first
            "MALLOC_MMAP_MAX_": "0",  # as the recipe
            "MALLOC_TRIM_THRESHOLD_": "100000000000",
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"main_ppo failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return [json.loads(line)["data"] for line in metrics.read_text().splitlines()][1:]


def ratios(ours: list[dict[str, float]], stock: list[dict[str, float]], part: str) -> dict[str, Any]:
    key = PARTS[part]
    values = sorted(mine[key] / theirs[key] for mine, theirs in zip(ours, stock, strict=True))
    return {
        "part": part,
        "stock_seconds_median": statistics.median(row[key] for row in stock),
        "ours_seconds_median": statistics.median(row[key] for row in ours),
        "ratio_median": statistics.median(values),
        "ratio_quartiles": [values[len(values) // 4], values[3 * len(values) // 4]],
        "ratio_of_sums": sum(row[key] for row in ours) / sum(row[key] for row in stock),
    }


if __name__ == "__main__":
    main()
