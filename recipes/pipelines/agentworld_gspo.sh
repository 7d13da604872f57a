#!/usr/bin/env bash
# The rows of Qwen-AgentWorld's GSPO for a host (trl or verl), in runs/agentworld. run_agentworld_gspo.sh calls it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 work=runs/agentworld domain=${DOMAIN:?mcp, search, terminal, swe, android, web or os}
samples=(--as agentworld --prompts "$domain" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 28672)
mkdir -p $work
[ -e $work/rollouts.jsonl ] ||
  wm data filter "${TRAJECTORIES:?a file of rollouts}" --for agentworld --domain "$domain" --out $work/rollouts.jsonl
made $work/one.validation.jsonl wm data expand $work/rollouts.jsonl --turns one --out $work/one.jsonl --validation-share 0.05
split_rows train $work/one.jsonl "${samples[@]}"
split_rows test $work/one.validation.jsonl "${samples[@]}"
