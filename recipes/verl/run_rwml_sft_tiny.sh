#!/usr/bin/env bash
# The start of the tiny RWML recipes, on a CPU, from a checkout: rollouts of the SQL tasks, rows of them for all three, and WM-SFT.
# Three in ten tasks are held out. SEED=1 makes another model and other data; further arguments override the YAML.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tests=${recipes%/*}/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
work=runs/rwml_tiny data=(python -m wm_plugin.cli.main data)
rows=(--prompts "$recipes/trl/rwml_tiny_prompts.yaml" --host verl)
mkdir -p $work
[ -f $work/random/config.json ] || python -m wm_plugin.tiny --out $work/random --seed "${SEED:-0}" --random --texts
[ -f $work/rollouts.jsonl ] ||
  python -m wm_plugin.tiny.rollouts --out $work/rollouts.jsonl --environment sql --count 1200 --seed "${SEED:-0}"
[ -f $work/transitions.validation.jsonl ] ||
  "${data[@]}" expand $work/rollouts.jsonl --out $work/transitions.jsonl --validation-share 0.3
[ -f $work/sft.parquet ] ||
  "${data[@]}" build $work/transitions.jsonl --as rwml-sft "${rows[@]}" --out $work/sft.parquet --tokenizer $work/random
[ -f $work/train.parquet ] ||
  "${data[@]}" build $work/transitions.jsonl --as rwml "${rows[@]}" --out $work/train.parquet
[ -f $work/test.parquet ] ||
  "${data[@]}" build $work/transitions.validation.jsonl --as rwml "${rows[@]}" --out $work/test.parquet --split test
exec torchrun --standalone --nproc_per_node=1 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name rwml_sft_tiny "$@"
