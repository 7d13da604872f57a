#!/usr/bin/env bash
# tau2_held_out.sh SERVER CUSTOMER FOLDER SEED [MODEL TURNS]: the test tasks of τ²-bench, each once. The customer is MODEL: by default that of
# RWML's evaluations, at CUSTOMER; gpt-4.1, that of the official ones, is OpenAI's (OPENAI_API_KEY).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
model=${5:-Qwen/Qwen3-235B-A22B-Instruct-2507}
columns=(--column user_model="$model")
[ "$model" = gpt-4.1 ] || columns+=(--column user_url="$2")
while read -r domain tasks; do
  made "$3/$domain.jsonl" wm env rollout tau2 --level "$domain" --held-out --count "$tasks" --max-turns "${6:-30}" --out "$3/$domain.jsonl" \
    --policy "$1" --model model --temperature 1 --seed "$4" "${columns[@]}"
done <<< $'retail 40\nairline 20\ntelecom 40'
