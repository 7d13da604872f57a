#!/usr/bin/env bash
# Rollouts of the SQL tasks, three in ten of them held out, and rows of them for RWML's tiny recipes of a host (trl or verl), in
# runs/rwml_tiny. run_rwml_sft_tiny.sh calls it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 work=runs/rwml_tiny seed=${SEED:-0}
prompts=$recipes/trl/rwml_tiny_prompts.yaml
made $work/random/config.json python -m wm_plugin.lab.tiny --out $work/random --seed "$seed" --random --texts
made $work/rollouts.jsonl python -m wm_plugin.lab.tiny.rollouts --out $work/rollouts.jsonl --environment sql --count 1200 \
  --seed "$seed"
made $work/transitions.validation.jsonl wm data expand $work/rollouts.jsonl --out $work/transitions.jsonl \
  --validation-share 0.3
made $work/sft.parquet wm data build $work/transitions.jsonl --as rwml-sft --host "$host" --prompts "$prompts" \
  --out $work/sft.parquet --tokenizer $work/random
split_rows train $work/transitions.jsonl --as rwml --prompts "$prompts"
split_rows test $work/transitions.validation.jsonl --as rwml --prompts "$prompts"
