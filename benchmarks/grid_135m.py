"""Does GRPO with the term keep what a pretrained model knows of its world, and does success change, from two bases?

Written before the first run. Setting: SmolLM2-135M-Instruct on the 4x4 grid, by the recipes: `clone_sql_135m` on 400 of an
expert's episodes (40 steps of 4, in bfloat16 where the processor has it), then `echo_sql_135m` on the grid, 60 steps of 8
episodes. The chat template is ChatML in which a move is one letter. (Calls in JSON were declared first: a step took a minute, and
they were given up in the first arm, before anything was measured.) Two bases: `cloned` has learnt the agent's tokens alone, `with
the term` the observations too, at coefficient 0.1 (docs/sft.md says to start there). From each, RL without the term (coefficient
0) and with it (0.05).

Metrics, on 64 held-out boards, after 0, 20, 40 and 60 steps: `success` of 64 episodes (standard error about .06); `env_nll`, in
nats a token, and `exact`, of the boards that an expert sees, `random_nll` and `random_exact` of those that random moves lead to;
`agent_nll` of an expert's turns; `perplexity` of 4,096 tokens of Python's documentation. Looking ahead is left out: a decision of
this model would take a minute of a core.

Rule, over n = 3 seeds: paired differences between 0.05 and 0 after 60 steps, of each base, with a t interval of 95%; one that
contains 0 is null. Seeds from 20 on: the steps of cloning were chosen on seed 0, where 40 gave a success of .47 on 32 boards, and
100 one of .84.

    python -m wm_plugin.lab.tiny pretrained --out runs/smollm2_135m
    python benchmarks/grid_135m.py --model runs/smollm2_135m --seeds 20 21 22       # half an hour of one core an arm and seed
    python benchmarks/grid_135m.py --model runs/smollm2_135m --seeds 20 --quick     # all of it in minutes; no evidence

A killed run goes on from its last checkpoint.
"""

import argparse
import json
import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from agent_sft_135m import Runs, read
from stamps import headed, stamp
from stamps import read as stamps
from tables import interval, markdown, verdict
from wm_plugin.lab.tiny.policy import RESPONSES

RESULTS = Path(__file__).parent / "results" / "grid_135m.json"
SETTINGS = {"demonstrations": 400, "held_out": 64, "text_tokens": 4096, "sft_steps": 40, "rl_steps": 60, "every": 20}
QUICK = {"demonstrations": 16, "held_out": 8, "text_tokens": 256, "sft_steps": 12, "rl_steps": 2, "every": 1}
METRICS = ("success", "env_nll", "exact", "random_nll", "random_exact", "agent_nll", "perplexity")
BASES = {"cloned": 0.0, "with the term": 0.1}
COEFFS = (0.0, 0.05)


TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' ~ message.role ~ '\n' -}}"
    "{%- for call in message.tool_calls or [] -%}{%- set call = call.function or call -%}"
    "{%- if call.name == 'move' and call.arguments.direction -%}{{- call.arguments.direction -}}"
    "{%- else -%}{{- call.name ~ (call.arguments | tojson) -}}{%- endif -%}{%- endfor -%}"
    "{{- (message.content or '') ~ '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
# parsed as the tiny policy's turns are
RESPONSE = {**RESPONSES["policy"], "start_anchor": "<|im_start|>assistant\n"}


class Grid(Runs):
    world = "grid"

    def __init__(self, folder: Path, model: Path, settings: Mapping[str, int]) -> None:
        start = folder / "start"
        if not start.exists():
            shutil.copytree(model, start)
            tokenizer = AutoTokenizer.from_pretrained(model)
            tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
            tokenizer.save_pretrained(start)
        super().__init__(folder, start, settings)

    def base(self, seed: int, base: str) -> Path:
        out = self.folder / f"{seed}_{base.replace(' ', '_')}"
        flags = ("--rows", str(self.folder / "demonstrations.parquet"), "--steps", str(self.settings["sft_steps"]))
        return self.recipe("clone_sql_135m", self.start, out, seed, BASES[base], *flags)

    def trained(self, seed: int, base: str, coeff: float) -> dict[int, Path]:
        """The models by their steps of RL."""
        start = self.base(seed, base)
        out = self.folder / f"{start.name}_{coeff:g}"
        every, steps = self.settings["every"], self.settings["rl_steps"]
        world = ("--environment", "grid", "--train_rows", "wm_plugin.worlds.grid:dataset_rows")
        rows = ("--train_rows_kwargs", json.dumps({"count": 2000, "seed": seed}), "--steps", str(steps))
        saved = ("--save_strategy", "steps", "--save_steps", str(every), "--resume_from_checkpoint", "auto")
        batch = ("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1")
        turn = ("--max_completion_length", "320", "--generation_kwargs", '{"max_new_tokens": 4}')
        self.recipe("echo_sql_135m", start, out, seed, coeff, *world, *rows, *saved, *batch, *turn)
        for file in out.glob("checkpoint-*/optimizer.pt"):  # a gigabyte each, and an ended run needs none
            file.unlink()
        return {0: start} | {step: out / f"checkpoint-{step}" for step in range(every, steps + 1, every)}


def page(records: list[dict[str, Any]]) -> str:
    """The document: means of each arm by step, differences, and every figure."""
    steps = sorted({one["step"] for one in records})
    by = {(one["base"], one["coeff"], one["step"], one["seed"]): one for one in records}
    seeds = sorted({one["seed"] for one in records})
    means, pairs = [], []
    for base in BASES:
        for coeff in COEFFS:
            for step in steps:
                own = [one for seed in seeds if (one := by.get((base, coeff, step, seed)))]
                if len(own) > 1:
                    found = [interval([one[metric] for one in own]) for metric in METRICS]
                    cells = [f"{mean:.3f} ± {half:.3f}" for mean, half in found]
                    means.append([base, f"{coeff:g}", str(step), str(len(own)), *cells])
        both = [seed for seed in seeds if all((base, coeff, steps[-1], seed) in by for coeff in COEFFS)]
        for metric in METRICS if len(both) > 1 else ():
            of = [[by[base, coeff, steps[-1], seed][metric] for seed in both] for coeff in COEFFS]
            mean, half = interval([own - other for other, own in zip(*of, strict=True)])
            pairs.append([base, metric, str(len(both)), f"{mean:+.3f} ± {half:.3f}", verdict(mean, half)])
    every = [
        [
            str(one["seed"]),
            one["base"],
            f"{one['coeff']:g}",
            str(one["step"]),
            *(f"{one[metric]:.3f}" for metric in METRICS),
        ]
        for one in sorted(records, key=lambda one: (one["seed"], one["base"], one["coeff"], one["step"]))
    ]
    minutes = sum(one["cpu_seconds"] for one in records) / 60
    return "\n".join(
        [
            f"# {(__doc__ or '').strip()}\n",
            f"Means over seeds with half their 95% interval; {minutes:.0f} CPU minutes in all.\n",
            *markdown(["base", "coefficient", "step", "n", *METRICS], means),
            f"Differences after {steps[-1]} steps, 0.05 against 0:\n",
            *markdown(["base", "metric", "n", "difference", "by the rule"], pairs),
            "Every figure:\n",
            *markdown(["seed", "base", "coefficient", "step", *METRICS], every),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="that python -m wm_plugin.lab.tiny pretrained wrote")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--bases", nargs="+", choices=BASES, default=[*BASES])
    parser.add_argument("--quick", action="store_true", help="all of it in minutes; its figures are no evidence")
    parser.add_argument("--work", type=Path, default=Path("runs/grid_135m"), help="folder of models and episodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings, out = (QUICK, options.work / "quick" / "grid_135m.json") if options.quick else (SETTINGS, RESULTS)
    runs = Grid(options.work / "quick" if options.quick else options.work, options.model, settings)
    for seed, base, coeff in [(s, b, c) for b in options.bases for s in options.seeds for c in COEFFS]:
        began = cpu_seconds()
        arm = {"seed": seed, "base": base, "coeff": coeff}
        if sum(arm.items() <= one.items() for one in read(out)) > settings["rl_steps"] // settings["every"]:
            continue  # measured after every step, and its models may be gone
        for step, folder in runs.trained(seed, base, coeff).items():
            here = {**arm, "step": step}
            if any(here.items() <= one.items() for one in read(out)):
                continue
            add(out, {**here, **runs.measure(folder), "cpu_seconds": round(cpu_seconds() - began)})
            began = cpu_seconds()
    finish(out, page(read(out)), None if options.quick else settings)


def add(out: Path, record: dict[str, Any]) -> None:
    """Append a record to those of the file, to which another process may have added some."""
    records = [*read(out), record]
    out.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
    print(record, flush=True)


def finish(out: Path, text: str, settings: Mapping[str, int] | None) -> None:
    """Write the page beside the records; with `settings` also the stamp."""
    if settings is not None:
        stamp(out, settings)
        text = headed(text, stamps()[out.stem])
    out.with_suffix(".md").write_text(text)


def cpu_seconds() -> float:
    """What this process and those that it waited for have used."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usages)


if __name__ == "__main__":
    main()
