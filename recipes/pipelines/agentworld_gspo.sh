#!/usr/bin/env bash
# The rows of Qwen-AgentWorld's GSPO for a host (trl or verl), in runs/agentworld. run_agentworld_gspo.sh calls it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 all=runs/agentworld
read -ra domains <<< "${DOMAIN:?one or more of mcp, search, terminal, swe, android, web, os}"
trajectories=${TRAJECTORIES:?a file of rollouts, or a folder with a DOMAIN.jsonl of each domain}

# the rows of $domain in $work: its own prompts, and its own guidance for the judge
rows() {
  local source=$trajectories samples=(--as agentworld --prompts "$domain" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 28672)
  if [ ${#domains[@]} -gt 1 ]; then source=$trajectories/$domain.jsonl; fi
  mkdir -p "$work"
  made "$work/rollouts.jsonl" wm data filter "$source" --for agentworld --domain "$domain" --out "$work/rollouts.jsonl"
  made "$work/one.validation.jsonl" wm data expand "$work/rollouts.jsonl" --turns one --out "$work/one.jsonl" --validation-share 0.05
  split_rows train "$work/one.jsonl" "${samples[@]}"
  split_rows test "$work/one.validation.jsonl" "${samples[@]}"
}

if [ ${#domains[@]} = 1 ]; then
  domain=${domains[0]} work=$all
  rows
else
  for domain in "${domains[@]}"; do work=$all/$domain && rows; done
  for part in train test; do
    file=$part.parquet
    if [ "$host" = trl ]; then file=data/$part.jsonl; fi
    mkdir -p "$(dirname "$all/$file")"
    parts=("${domains[@]/#/$all/}")
    made "$all/$file" wm lab mix "${parts[@]/%//$file}" --count all --out "$all/$file"
  done
fi
