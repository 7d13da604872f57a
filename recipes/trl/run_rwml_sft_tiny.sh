#!/usr/bin/env bash
# The start of the tiny RWML recipes, on a CPU: rollouts of the SQL tasks, rows of them for all three, and WM-SFT.
# Three in ten tasks are held out. SEED=1 makes another model and other data; further arguments override the YAML.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=runs/rwml_tiny data=(python -m wm_plugin.cli.main data)
rows=(--prompts "$here/rwml_tiny_prompts.yaml" --host trl)
mkdir -p $work/data
[ -f $work/random/config.json ] || python -m wm_plugin.tiny --out $work/random --seed "${SEED:-0}" --random --texts
[ -f $work/rollouts.jsonl ] ||
  python -m wm_plugin.tiny.rollouts --out $work/rollouts.jsonl --environment sql --count 1200 --seed "${SEED:-0}"
[ -f $work/transitions.validation.jsonl ] ||
  "${data[@]}" expand $work/rollouts.jsonl --out $work/transitions.jsonl --validation-share 0.3
[ -f $work/sft.parquet ] ||
  "${data[@]}" build $work/transitions.jsonl --as rwml-sft "${rows[@]}" --out $work/sft.parquet --tokenizer $work/random
[ -f $work/data/train.jsonl ] ||
  "${data[@]}" build $work/transitions.jsonl --as rwml "${rows[@]}" --out $work/data/train.jsonl
[ -f $work/data/test.jsonl ] ||
  "${data[@]}" build $work/transitions.validation.jsonl --as rwml "${rows[@]}" --out $work/data/test.jsonl
exec trl sft --config "$here/rwml_sft_tiny.yaml" --seed "${SEED:-0}" "$@"
