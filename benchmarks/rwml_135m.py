"""Does RWML change fewer weights of a pretrained model, and make it forget less, than WM-SFT on the same transitions?

Written before the first run. Setting: SmolLM2-135M-Instruct foresees what the SQL tasks' tools return to a wanderer, from the
call alone, where that has at most 120 characters. A seed draws 40 transitions for a warm start by WM-SFT, without which the
model's predictions have next to no ROUGE, and 96 others, which every arm sees once, in 24 steps of 4:

  wm_sft   WM-SFT at twice RWML's learning rate, as in the paper (appendix B)
  same     WM-SFT at RWML's rate: a control, as the rate alone changes weights
  rwml     RWML: 4 predictions a transition, rewarded by ROUGE in steps of 0.2; at 1e-5, ten times the paper's rate, for few steps

Metrics: `changed`, the share of weights that training moved by more than 1e-3 of their size (the paper's), from the warm start;
`perplexity` of 4,096 tokens of Python's documentation; on 64 transitions of held-out databases `rouge` and `exact` of greedy
predictions, in which one that does not end within 64 tokens is wrong, and `nll` of what came, in nats a token.

Rule, over n = 5 seeds: paired differences between `rwml` and each of the others with a t interval of 95%; one that contains 0 is
null. The paper finds RWML's change smaller than WM-SFT's, and its forgetting less. Seeds from 20 on: the learning rate, the
lengths and the prompt were chosen on seed 0.

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
    python benchmarks/rwml_135m.py --model runs/smollm2_135m --seeds 20 21 22 23 24   # 22 minutes of one core a seed
    python benchmarks/rwml_135m.py --model runs/smollm2_135m --seeds 20 --quick       # all of it in minutes; no evidence

A killed run goes on from the last model.
"""

import argparse
import json
import os
import random
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from wm_plugin.recipes.pipelines.figures import perplexity

from agent_sft_135m import Runs, read
from grid_135m import add, cpu_seconds, finish
from tables import interval, markdown, verdict
from wm_plugin.data.transitions import read_transitions
from wm_plugin.data.write import write_transitions
from wm_plugin.lab.evaluation.measures import read_result
from wm_plugin.lab.evaluation.weights import changes, evaluation, pair

RESULTS = Path(__file__).parent / "results" / "rwml_135m.json"
SETTINGS = {
    "episodes": 120,
    "warm": 40,
    "learnt": 96,
    "batch": 4,
    "predictions": 4,
    "held_out": 64,
    "text_tokens": 4096,
}
QUICK = {"episodes": 12, "warm": 4, "learnt": 8, "batch": 4, "predictions": 2, "held_out": 4, "text_tokens": 256}
LONGEST = 120  # characters of an observation
TOKENS = 64  # of a prediction
METRICS = ("changed", "perplexity", "rouge", "exact", "nll")
RATE = 1e-5
ARMS = {"warm": 0.0, "wm_sft": 2 * RATE, "same": RATE, "rwml": RATE}
PROMPTS = """\
history: messages
omits: [context]
dialogue: ""
variants:
  v0:
    system: >-
      You are the tools of an agent that works on a SQLite database. Answer a call with the text that the tool returns, and
      nothing else. list_tables gives a name a line, describe_table SQL statements, run_query the names of the columns and the
      rows, with | between, or OK, or an error, and submit_answer whether the answer is right.
    user: $action
"""


class Foreseen(Runs):
    """Transitions of all seeds, and models of each, in one folder."""

    def __init__(self, folder: Path, model: Path, settings: dict[str, int]) -> None:
        self.folder, self.start, self.settings = folder.resolve(), model.resolve(), settings
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prompts = self.folder / "prompts.yaml"
        self.prompts.write_text(PROMPTS)
        self.transitions("learnt")
        self.transitions("held_out", "--seed", "7", "--held-out")

    def transitions(self, name: str, *play: str) -> None:
        made = self.folder / f"{name}.jsonl"
        if made.exists():
            return
        played, clean, all_of = (self.folder / f"{name}.{part}.jsonl" for part in ("played", "clean", "all"))
        count = ("--count", str(self.settings["episodes"]), "--max-turns", "6")
        self.wm(played, "env", "rollout", "sql", "--policy", "random", *count, *play)
        filters = "empty_actions,invalid_actions,environment_failures"
        self.wm(clean, "data", "filter", str(played), "--filters", filters)
        self.wm(all_of, "data", "expand", str(clean))
        short = [
            one.model_copy(update={"history": ()})
            for one in read_transitions(all_of)
            if len(one.observation.text) <= LONGEST
        ]
        if name == "held_out":
            short = random.Random(0).sample(short, self.settings["held_out"])
        write_transitions(short, made, repeat_history=True)

    def rows(self, seed: int) -> Path:
        """The seed's transitions: `warm`, and `learnt` as rows for RWML and for WM-SFT."""
        out = self.folder / f"rows_{seed}"
        if not out.exists():
            unfinished = self.folder / f"rows_{seed}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            warm, learnt = self.settings["warm"], self.settings["learnt"]
            drawn = random.Random(seed).sample([*read_transitions(self.folder / "learnt.jsonl")], warm + learnt)
            write_transitions(drawn[:warm], unfinished / "warm.jsonl", repeat_history=True)
            write_transitions(drawn[warm:], unfinished / "learnt.jsonl", repeat_history=True)
            for part in ("warm", "learnt"):
                self.build(unfinished / f"{part}.jsonl", "rwml-sft", unfinished / f"{part}.parquet")
            for split in ("train", "test"):  # the recipe wants both, and validates in neither arm
                self.build(unfinished / "learnt.jsonl", "rwml", unfinished / "rwml" / f"{split}.jsonl")
            unfinished.rename(out)
        return out

    def build(self, source: Path, kind: str, out: Path) -> None:
        flags = ("--host", "trl", "--prompts", str(self.prompts))
        tokens = ("--tokenizer", str(self.start)) if kind == "rwml-sft" else ()
        self.wm(out, "data", "build", str(source), "--as", kind, *flags, *tokens)

    def model(self, seed: int, arm: str) -> Path:
        rows, out = self.rows(seed), self.folder / f"{seed}_{arm}"
        batch = self.settings["batch"]
        steps = ("--steps", str(self.settings["learnt"] // batch))
        even = ("--learning_rate", str(ARMS[arm]), "--lr_scheduler_type", "constant", "--warmup_steps", "0")
        if arm == "warm":
            steps = ("--steps", str(self.settings["warm"] // batch))
            return self.recipe(
                "clone_sql_135m", self.start, out, seed, 0.0, "--rows", str(rows / "warm.parquet"), *steps
            )
        start = self.model(seed, "warm")
        if arm != "rwml":
            return self.recipe(
                "clone_sql_135m", start, out, seed, 0.0, "--rows", str(rows / "learnt.parquet"), *steps, *even
            )
        group = self.settings["predictions"]
        outputs = ("--num_generations", str(group), "--max_completion_length", str(TOKENS))
        # 8 at once: the logits of 49,152 tokens are the largest part of the memory
        size = ("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", str(batch * group // 8))
        reward = {"path": "rwml", "kwargs": {"tag": "", "model": "unused", "base_url": "http://localhost:8000/v1"}}
        flags = ("--data", str(rows / "rwml"), "--rewards", json.dumps(reward), "--adam_beta2", "0.999")
        apart = ("--eval_strategy", "no", "--eval_on_start", "false", "--bf16", str(has_bfloat16()).lower())
        return self.recipe("rwml_grpo_tiny", start, out, seed, 0.0, *flags, *steps, *even, *outputs, *size, *apart)

    def measured(self, seed: int, arm: str) -> dict[str, Any]:
        folder, start = self.model(seed, arm), self.model(seed, "warm")
        compared = pair(start, folder)
        made = {"changed": evaluation(changes(compared), compared, str(start), str(folder)).measure("changed").value}
        tokenizer = AutoTokenizer.from_pretrained(self.start)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.autocast("cpu", torch.bfloat16):
            texts = [topics[name] for name in sorted(topics)]
            made["perplexity"] = perplexity(model, tokenizer, texts, tokens=self.settings["text_tokens"])
        out = folder / "foreseen"
        asked = (
            "--as",
            "rwml-sft",
            "--prompts",
            str(self.prompts),
            "--model",
            str(self.halved(folder)),
        )
        size = ("--max-new-tokens", str(TOKENS), "--batch-size", "16")
        self.wm(out, "eval", "one-step", str(self.folder / "held_out.jsonl"), *asked, *size)
        found = read_result(out)
        made |= {name: found.measure(name).with_failed for name in ("rouge", "exact")}
        return made | {"nll": found.measure("nll").value}


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16, and does not emulate it; as the launcher of the recipes asks."""
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else ()
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def page(records: list[dict[str, Any]]) -> str:
    by = {(one["seed"], one["arm"]): one for one in records}
    seeds = sorted({seed for seed, _ in by if all((seed, arm) in by for arm in ARMS)})
    means, pairs = [], []
    for arm in ARMS if len(seeds) > 1 else ():
        found = [interval([by[seed, arm][metric] for seed in seeds]) for metric in METRICS]
        means.append([arm, str(len(seeds)), *(f"{mean:.3f} ± {half:.3f}" for mean, half in found)])
    for other in [arm for arm in ARMS if arm != "rwml"] if len(seeds) > 1 else ():
        for metric in METRICS:
            mean, half = interval([by[seed, "rwml"][metric] - by[seed, other][metric] for seed in seeds])
            pairs.append([other, metric, f"{mean:+.3f} ± {half:.3f}", verdict(mean, half)])
    listed = [
        [str(seed), arm, *(f"{one[metric]:.3f}" for metric in METRICS)] for (seed, arm), one in sorted(by.items())
    ]
    minutes = sum(one["cpu_seconds"] for one in records) / 60
    return "\n".join(
        [
            f"# {(__doc__ or '').strip()}\n",
            f"Means over seeds with half their 95% interval; {minutes:.0f} CPU minutes in all. "
            "`warm` is the start of all arms.\n",
            *markdown(["arm", "n", *METRICS], means),
            "Differences of `rwml`, paired by seed:\n",
            *markdown(["against", "metric", "difference", "by the rule"], pairs),
            "Every figure:\n",
            *markdown(["seed", "arm", *METRICS], listed),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="that python -m wm_plugin.lab.tiny pretrained wrote")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--quick", action="store_true", help="all of it in minutes; its figures are no evidence")
    parser.add_argument("--work", type=Path, default=Path("runs/rwml_135m"), help="folder of models and transitions")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder, settings = (options.work / "quick", QUICK) if options.quick else (options.work, SETTINGS)
    out = folder / "rwml_135m.json" if options.quick else RESULTS
    runs = Foreseen(folder, options.model, settings)
    for seed, arm in [(seed, arm) for seed in options.seeds for arm in ARMS]:
        here = {"seed": seed, "arm": arm}
        if any(here.items() <= one.items() for one in read(out)):
            continue
        began = cpu_seconds()
        add(out, {**here, **runs.measured(seed, arm), "cpu_seconds": round(cpu_seconds() - began)})
    finish(out, page(read(out)), None if options.quick else settings)


if __name__ == "__main__":
    main()
