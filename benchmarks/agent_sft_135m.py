"""Does SFT with the term predict the environment better than stock SFT on a pretrained model, and what is left after RL?

Written before the first run. Setting: SmolLM2-135M-Instruct on the SQL tasks, by the recipes as they stand: `clone_sql_135m` (20
steps of 4 of an expert's episodes, in bfloat16 where the processor has it), then `echo_sql_135m` with 4 steps of 8 episodes.

  stock    the agent's tokens alone
  term     the same at coefficient 1: a mean of the agent's tokens, and one of the observations'
  0.1      at coefficient 0.1; added when the figures of the other two were known

Metrics, on 32 databases that nothing is trained on, in nats a token: `env_nll` of the results of an expert's calls, `random_nll`
of those of random calls, `agent_nll` of an expert's turns, the loss that SFT is for; `success` of 32 played episodes (standard
error about .08); `perplexity` of 4,096 tokens of Python's documentation.

Rule, over n = 3 seeds, of paired differences with a t interval of 95%: as in agent_sft.py. RL follows from the models of the
first seeds, as many as time allows, without the term from both and with it (coefficient 1) from `term`. So few steps and seeds
make no claim about success: its figures are listed as they are. (Added on 2026-11-29: these two sentences are about RL. After
SFT success is judged by the rule.)

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
    python benchmarks/agent_sft_135m.py --model runs/smollm2_135m --seeds 1 2 3     # half an hour of one core a seed
    python benchmarks/agent_sft_135m.py --model runs/smollm2_135m --rl 1            # and as long again
    python benchmarks/agent_sft_135m.py --model runs/smollm2_135m --seeds 1 --quick # all of it in minutes; no evidence
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from wm_plugin.recipes.pipelines.figures import perplexity

from agent_sft import paired
from stamps import headed, stamp
from stamps import read as stamps
from tables import interval, markdown
from wm_plugin.lab.evaluation.one_step import evaluate

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "agent_sft_135m.json"
SETTINGS = {"demonstrations": 400, "held_out": 32, "sft_steps": 20, "rl_steps": 4, "episodes": 8, "text_tokens": 4096}
QUICK = {"demonstrations": 12, "held_out": 2, "sft_steps": 1, "rl_steps": 1, "episodes": 8, "text_tokens": 256}
METRICS = ("env_nll", "random_nll", "agent_nll", "success", "perplexity")
SFT = {"stock": 0.0, "term": 1.0, "0.1": 0.1}
RL = {"stock, RL at 0": ("stock", 0.0), "term, RL at 0": ("term", 0.0), "term, RL at 1": ("term", 1.0)}
ENVIRONMENT = {
    # glibc gives large tensors back after each use; to get their pages again is a fourth of a step on a CPU
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    # recipes call `python`: this one
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}


class Runs:
    """The files of all seeds in one folder; what is there is not made again."""

    world = "sql"

    def __init__(self, folder: Path, model: Path, settings: Mapping[str, int]) -> None:
        self.folder, self.start, self.settings = folder.resolve(), model.resolve(), settings
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokens("demonstrations", "--policy", "expert", "--count", str(self.settings["demonstrations"]))
        held_out = ("--count", str(self.settings["held_out"]), "--seed", "7", "--held-out")
        self.tokens("expert", "--policy", "expert", *held_out)
        self.tokens("random", "--policy", "random", *held_out, "--max-turns", "4")
        self.play = (*held_out, "--max-turns", "6", "--max-new-tokens", "112", "--batch-size", "32")

    def run(self, made: Path, *command: str) -> None:
        if not made.exists():
            with (self.folder / "log.txt").open("a") as log:
                done = subprocess.run(
                    command, cwd=self.folder, env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log
                )
            if done.returncode:
                sys.exit(f"`{shlex.join(command)}` ended with {done.returncode}; its output is in {log.name}")

    def wm(self, made: Path, *arguments: str) -> None:
        self.run(made, sys.executable, "-m", "wm_plugin", *arguments, "--out", str(made))

    def tokens(self, name: str, *play: str) -> None:
        episodes = self.folder / f"{name}.jsonl"
        self.wm(episodes, "env", "rollout", self.world, *play)
        build = ("data", "build", str(episodes), "--as", "imitation", "--host", "trl", "--tokenizer", str(self.start))
        self.wm(self.folder / f"{name}.parquet", *build, "--max-tokens", "1024")

    def recipe(self, name: str, model: Path, out: Path, seed: int, coeff: float, *flags: str) -> Path:
        made = out / "model.safetensors"
        words = ["--model", model, "--out", out, "--seed", seed, "--coeff", coeff, *flags]
        self.run(made, "bash", str(ROOT / "recipes" / "trl" / "run.sh"), name, *map(str, words))
        return out

    def trained(self, seed: int, arm: str) -> Path:
        out = self.folder / f"{seed} {arm}".replace(",", "").replace(" ", "_")
        if arm in SFT:
            flags = ("--rows", str(self.folder / "demonstrations.parquet"), "--steps", str(self.settings["sft_steps"]))
            return self.recipe("clone_sql_135m", self.start, out, seed, SFT[arm], *flags)
        base, coeff = RL[arm]
        accumulate = ("--gradient_accumulation_steps", str(self.settings["episodes"] // 2))
        flags = ("--steps", str(self.settings["rl_steps"]), *accumulate)
        return self.recipe("echo_sql_135m", self.trained(seed, base), out, seed, coeff, *flags)

    def halved(self, folder: Path) -> Path:
        """The model in bfloat16, which plays twice as fast."""
        out = folder / "bfloat16"
        if not out.exists():
            AutoTokenizer.from_pretrained(folder).save_pretrained(out)
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(out)
        return out

    def measure(self, folder: Path) -> dict[str, float]:
        made = {}
        if folder != self.start:  # which makes no call
            played = folder / "played.jsonl"
            self.wm(played, "env", "rollout", self.world, "--policy", str(self.halved(folder)), *self.play)
            episodes = [json.loads(line) for line in played.read_text().splitlines()]
            made["success"] = sum(one["success"] is True for one in episodes) / self.settings["held_out"]
        tokenizer = AutoTokenizer.from_pretrained(self.start)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.autocast("cpu", torch.bfloat16):
            for name in ("expert", "random"):
                rows = pyarrow.parquet.read_table(self.folder / f"{name}.parquet").to_pylist()
                ids = [row["input_ids"] for row in rows]
                seen = [spans(row) for row in rows]
                predicted = evaluate(model, ids, seen, batch_size=4)
                made["env_nll" if name == "expert" else "random_nll"] = predicted.mean_nll
                made["exact" if name == "expert" else "random_exact"] = predicted.exact_share
                if name == "expert":
                    own = [row["assistant_masks"] for row in rows]
                    made["agent_nll"] = evaluate(model, ids, own, batch_size=4).mean_nll
            texts = [topics[name] for name in sorted(topics)]
            made["perplexity"] = perplexity(model, tokenizer, texts, tokens=self.settings["text_tokens"])
        return made


def spans(row: dict[str, Any]) -> list[int]:
    """The mask of a row's observations: contents alone."""
    mask = [0] * len(row["input_ids"])
    for span in row["env_spans"]:
        if span["content"]:
            mask[span["start"] : span["end"]] = [1] * (span["end"] - span["start"])
    return mask


def page(records: list[dict[str, Any]]) -> str:
    means, pairs = [], []
    for arm in SFT:
        own = [one for one in records if {arm, "stock"} <= set(one["arms"])]
        if len(own) < 2:
            continue
        found = [interval([one["arms"][arm][metric] for one in own]) for metric in METRICS]
        means.append([f"{arm}, n = {len(own)}", *(f"{mean:.3f} ± {half:.3f}" for mean, half in found)])
        pairs += [paired(own, arm, "stock", metric) for metric in METRICS if arm != "stock"]
    listed = [
        [str(one["seed"]), arm, *(f"{figures[metric]:.3f}" if metric in figures else "" for metric in METRICS)]
        for one in records
        for arm, figures in one["arms"].items()
    ]
    seconds = sum(one["seconds"] for one in records)
    return "\n".join(
        [
            f"# {(__doc__ or '').strip()}\n",
            "After SFT. Means with half their 95% interval over seeds; "
            f"{seconds} seconds in all, on two cores with other work.\n",
            *markdown(["arm", *METRICS], means),
            "Differences, paired by seed:\n",
            *markdown(["", "metric", "difference", "by the rule"], pairs),
            "Each model. `start` is the pretrained one:\n",
            *markdown(["seed", "arm", *METRICS], listed),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="that python -m wm_plugin.lab.tiny pretrained wrote")
    parser.add_argument("--seeds", nargs="*", type=int, default=[], help="of SFT")
    parser.add_argument("--arms", nargs="*", choices=SFT, default=[*SFT])
    parser.add_argument("--rl", nargs="*", type=int, default=[], help="seeds whose models are trained by RL")
    parser.add_argument("--quick", action="store_true", help="all of it in minutes; its figures are no evidence")
    parser.add_argument("--work", type=Path, default=Path("runs/agent_sft_135m"), help="folder of models and episodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder, settings = (options.work / "quick", QUICK) if options.quick else (options.work, SETTINGS)
    out = folder / "agent_sft_135m.json" if options.quick else RESULTS
    runs = Runs(folder, options.model, settings)
    todo = [(seed, arm) for seed in options.seeds for arm in ("start", *options.arms)]
    for seed, arm in [*todo, *((seed, arm) for seed in options.rl for arm in RL)]:
        began = time.monotonic()
        if arm == "start" and read(out):
            continue  # no seed changes it
        figures = runs.measure(runs.start if arm == "start" else runs.trained(seed, arm))
        records = {one["seed"]: one for one in read(out)}  # again: another process may have added some
        record = records.setdefault(seed, {"seed": seed, "arms": {}, "seconds": 0})
        record["arms"][arm] = figures
        record["seconds"] += round(time.monotonic() - began)
        done = [records[one] for one in sorted(records)]
        out.write_text("[\n" + ",\n".join(json.dumps(one) for one in done) + "\n]\n")
        print(seed, arm, figures, flush=True)
    if options.quick:
        out.with_suffix(".md").write_text(page(read(out)))
    elif sum({"stock", "term"} <= set(one["arms"]) for one in read(out)) > 1:
        stamp(out, settings)
        out.with_suffix(".md").write_text(headed(page(read(out)), stamps()[out.stem]))


def read(written: Path) -> list[dict[str, Any]]:
    return json.loads(written.read_text()) if written.exists() else []


if __name__ == "__main__":
    main()
