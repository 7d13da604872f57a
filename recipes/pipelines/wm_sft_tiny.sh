#!/usr/bin/env bash
# Rollouts of the grid, and the rows of a tiny recipe of WM-SFT, CPT or agent-SFT for a host (trl or verl), in runs/<recipe>/<host>.parquet.
# The recipe's script calls it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 recipe=$2 work=runs/$2 out=runs/$2/$1.parquet policy=runs/tiny_random
made $policy/config.json python -m wm_plugin.lab.tiny --out $policy --seed 0 --random
made $policy/rollouts.jsonl python -m wm_plugin.lab.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "$work"

build() { wm data build $policy/rollouts.jsonl --host "$host" --out "$out" --tokenizer $policy "$@"; }

wm_sft_rwml_tiny() { build --as rwml-sft; }

wm_sft_word2world_tiny() { build --as word2world; }

agent_sft_tiny() { build --as rft; }

wm_cpt_agentworld_tiny() {
  [ -e "$work/corpus.jsonl" ] || for way in up down left right; do
    printf '{"text": "A grid has walls. Who moves %s leaves a cell and stands in the next one, unless a wall is there."}\n' $way
  done > "$work/corpus.jsonl"
  build --as cpt --prompts mcp --corpus "$work/corpus.jsonl" --max-tokens 4096
}

wm_sft_agentworld_tiny() {
  local judge='{"base_url": "http://127.0.0.1:8399/v1", "model": "judge"}'
  made "$work/one.jsonl" wm data expand $policy/rollouts.jsonl --turns one --out "$work/one.jsonl"
  python -m wm_plugin.lab.tiny.judge python -m wm_plugin lab best "$work/one.jsonl" --prompts mcp --turn-information --n 3 \
    --server http://127.0.0.1:8399/v1 --server-model reasoner --judge rubric \
    --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" --compare reference --compare-args "{\"server\": $judge}" \
    --threshold 0.1 --host "$host" --out "$out" --tokenizer $policy --max-tokens 4096
}

made "$out" "$recipe"
