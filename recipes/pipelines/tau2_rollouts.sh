#!/usr/bin/env bash
# tau2_rollouts.sh SERVER CUSTOMER FOLDER: of all train tasks of τ²-bench three rollouts with each of two customers, as in RWML: gpt-4.1
# (OPENAI_API_KEY), and Qwen3-235B-A22B-Instruct-2507 at CUSTOMER. A file that is there is not made again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
server=$1 customer=$2 folder=$3

played() { # NUMBER COLUMN...
  local domain tasks columns=()
  for column in "${@:2}"; do columns+=(--column "$column"); done
  while read -r domain tasks; do
    made "$folder/$domain-$1.jsonl" wm env rollout tau2 --level "$domain" --count "$tasks" --per-task 3 --max-turns 30 \
      --out "$folder/$domain-$1.jsonl" --policy "$server" --model model --temperature 1 --sampling-seed "$1" "${columns[@]}"
  done <<< $'retail 74\nairline 30\ntelecom 74'
}

played 1 user_model=gpt-4.1
played 2 user_model=Qwen/Qwen3-235B-A22B-Instruct-2507 user_url="$customer"
