#!/usr/bin/env bash
# The rows of a recipe of WM-SFT, CPT or agent-SFT for a host (trl or verl), in runs/<recipe>/<host>.parquet. The recipe's script calls it,
# and says which variables there are.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
host=$1 recipe=$2 work=runs/$2 out=runs/$2/$1.parquet
mkdir -p "$work"

build() { wm data build "$1" --host "$host" --out "$out" "${@:2}"; } # SOURCE FLAG...

# of a domain: what its filters leave
filtered() {
  domain=${DOMAIN:?mcp, search, terminal, swe, android, web or os}
  [ -e "$work/rollouts.jsonl" ] ||
    wm data filter "${TRAJECTORIES:?a file of rollouts}" --for agentworld --domain "$domain" --out "$work/rollouts.jsonl"
}

wm_sft_rwml() {
  local transitions=${TRANSITIONS:-$work/rollouts.jsonl}
  [ -n "${TRANSITIONS:-}" ] || [ -e "$transitions" ] ||
    wm data filter "${TRAJECTORIES:?a file of rollouts}" --out "$transitions" --filters $rwml_filters
  build "$transitions" --as rwml-sft --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 8192
}

wm_sft_word2world() {
  build "${TRAJECTORIES:?a file of rollouts}" --as word2world --tokenizer Qwen/Qwen2.5-7B --max-tokens 12288 --too-long truncate
}

agent_sft() {
  build "${TRAJECTORIES:?a file of successful trajectories}" --as imitation --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 12288 \
    --too-long truncate
}

wm_cpt_agentworld() {
  local corpora=()
  for file in ${CORPUS:-}; do corpora+=(--corpus "$file"); done
  filtered
  build "$work/rollouts.jsonl" --as cpt --prompts "$domain" "${corpora[@]}" --tokenizer Qwen/Qwen2.5-7B --max-tokens 16384
}

wm_sft_agentworld() {
  local judge="{\"base_url\": \"${JUDGE:?the address of a judge}\", \"model\": \"${JUDGE_MODEL:?its name}\"}"
  filtered
  made "$work/one.jsonl" wm data expand "$work/rollouts.jsonl" --turns one --out "$work/one.jsonl"
  wm lab best "$work/one.jsonl" --prompts "$domain" --turn-information --n 3 \
    --server "${SERVER:?the address of a reasoning model}" --server-model "${SERVER_MODEL:?its name}" --max-new-tokens 8192 \
    --judge rubric --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" \
    --compare reference --compare-args "{\"server\": $judge}" --threshold "${THRESHOLD:-0.6}" \
    --host "$host" --out "$out" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 16384
}

made "$out" "$recipe"
