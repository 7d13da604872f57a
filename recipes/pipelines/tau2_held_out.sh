#!/usr/bin/env bash
# tau2_held_out.sh SERVER CUSTOMER FOLDER SEED: the test tasks of τ²-bench, each once, with the customer of RWML's evaluations.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
while read -r domain tasks; do
  made "$3/$domain.jsonl" wm env rollout tau2 --level "$domain" --held-out --count "$tasks" --max-turns 30 --out "$3/$domain.jsonl" \
    --policy "$1" --model model --temperature 1 --seed "$4" --column user_model=Qwen/Qwen3-235B-A22B-Instruct-2507 --column user_url="$2"
done <<< $'retail 40\nairline 20\ntelecom 40'
