#!/usr/bin/env bash
# The rows of Qwen-AgentWorld's tiny GSPO for a host (trl or verl), in runs/agentworld_tiny, from rwml_sft_tiny.sh's rollouts.
# run_agentworld_gspo_tiny.sh calls it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 work=runs/agentworld_tiny
samples=(--as agentworld --prompts "$recipes/trl/rwml_tiny_prompts.yaml" --domain mcp)
mkdir -p $work
made $work/one.validation.jsonl wm data expand runs/rwml_tiny/rollouts.jsonl --turns one --out $work/one.jsonl \
  --validation-share 0.3
split_rows train $work/one.jsonl "${samples[@]}"
split_rows test $work/one.validation.jsonl "${samples[@]}"
