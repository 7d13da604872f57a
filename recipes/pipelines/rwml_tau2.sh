#!/usr/bin/env bash
# RWML's data on τ²-bench, from the world to the rows of a host (trl or verl), in runs/rwml_tau2. run_rwml_tau2.sh calls it.
#
# Paper: all 178 train tasks, N = 6 rollouts each by the model that is trained, at temperature 1: three with each of two models as
# the customer; values of tools' results become schemas; the prompt has what the customer knows of themselves, and asks for the
# task's completion status; easy at 0.15, p = 0.1.
# Ours: 30 steps at most, as for ALFWorld; the tenth that is held out is of the tasks; episodes that the world lost are left out.
# Needs: tau2-bench, 8 GPUs, OPENAI_API_KEY for gpt-4.1, CUSTOMER with the address of a server of the other customer, and a server of
# the embeddings at EMBEDDINGS: vllm serve Qwen/Qwen3-Embedding-8B --port 8001
set -euo pipefail
host=$1 work=runs/rwml_tau2 model=Qwen/Qwen3-8B prompts=rwml-completion longest=8192 share=0.1
held_out=$work/transitions.validation.jsonl threshold=(--threshold 0.15) changes=(--mask-values --profile)
source "$(dirname "${BASH_SOURCE[0]}")/rwml.sh"

# with NUMBER COLUMN...: three rollouts of every train task with the customer of these columns
with() {
  local domain tasks number=$1 columns=()
  for column in "${@:2}"; do columns+=(--column "$column"); done
  while read -r domain tasks; do
    parts+=("$work/rollouts/$domain-$number.jsonl")
    made "${parts[-1]}" wm env rollout tau2 --level "$domain" --count "$tasks" --per-task 3 --max-turns 30 --out "${parts[-1]}" \
      --policy $server --model model --temperature 1 --sampling-seed "$number" "${columns[@]}"
  done <<< $'retail 74\nairline 30\ntelecom 74'
}

both_customers() {
  local parts=()
  with 1 user_model=gpt-4.1
  with 2 user_model=Qwen/Qwen3-235B-A22B-Instruct-2507 user_url="$CUSTOMER"
  wm data convert "${parts[@]}" --out "$work/rollouts.jsonl"
}

rollouts() {
  : "${CUSTOMER:?the address of a server of the second customer}"
  mkdir -p "$work/rollouts"
  serving "$model" both_customers
}

rwml
