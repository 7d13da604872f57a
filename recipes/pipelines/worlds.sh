#!/usr/bin/env bash
# worlds.sh rollouts WORLD MODEL FILE [FLAG...]: train tasks of a world, played by MODEL while vLLM serves it (beside_vllm.sh).
# worlds.sh held_out WORLD MODEL FOLDER [FLAG...]: its held-out tasks, each once. Flags are of `wm env rollout`, and win.
# WORLD is alfworld, scienceworld or tau2, as RWML has them: on τ² three rollouts with each of two customers, gpt-4.1 (OPENAI_API_KEY) and
# Qwen3-235B-A22B-Instruct-2507 at CUSTOMER. The held-out ones have the latter, or CUSTOMER_MODEL=gpt-4.1. What is there is not made again.
set -euo pipefail
[ -n "${WM_SERVED:-}" ] || exec env WM_SERVED=1 bash "$(dirname "${BASH_SOURCE[0]}")/beside_vllm.sh" "$3" bash "${BASH_SOURCE[0]}" "$@"
what=$1 world=$2 out=$4
qwen=Qwen/Qwen3-235B-A22B-Instruct-2507

play() { # FILE FLAG...
  [ -e "$1" ] || python -m wm_plugin env rollout "$world" --policy http://localhost:8000/v1 --model model --temperature 1 \
    --max-turns 30 --out "$1" "${@:2}"
}

of_tau2() { # END FLAG...: all domains
  local domain tasks counts=$'retail 74\nairline 30\ntelecom 74'
  [ "$what" = rollouts ] || counts=$'retail 40\nairline 20\ntelecom 40'
  while read -r domain tasks; do
    play "$out/$domain$1.jsonl" --level "$domain" --count "$tasks" "${@:2}"
  done <<< "$counts"
}

case $what-$world in
  rollouts-alfworld) play "$out" --level data --count 2048 --per-task 3 "${@:5}" ;;
  rollouts-scienceworld) play "$out" --level standard --count 800 --per-task 3 "${@:5}" ;;
  rollouts-tau2)
    out=${4%.jsonl}
    mkdir -p "$out"
    of_tau2 -1 --per-task 3 --sampling-seed 1 --column user_model=gpt-4.1 "${@:5}"
    of_tau2 -2 --per-task 3 --sampling-seed 2 --column user_model=$qwen --column user_url="${CUSTOMER:?}" "${@:5}"
    python -m wm_plugin data convert "$out"/*-1.jsonl "$out"/*-2.jsonl --out "$4"
    ;;
  held_out-alfworld)
    play "$out/seen.jsonl" --level data --split seen --count 140 "${@:5}"
    play "$out/unseen.jsonl" --level data --split unseen --count 134 "${@:5}"
    ;;
  held_out-scienceworld)
    for split in seen unseen; do play "$out/$split.jsonl" --level standard --split $split --count 200 "${@:5}"; done
    ;;
  held_out-tau2)
    columns=(--column user_model="${CUSTOMER_MODEL:-$qwen}")
    [ "${CUSTOMER_MODEL:-}" = gpt-4.1 ] || columns+=(--column user_url="${CUSTOMER:?}")
    of_tau2 "" --held-out "${columns[@]}" "${@:5}"
    ;;
  *) echo "worlds.sh: write rollouts or held_out, and alfworld, scienceworld or tau2" >&2 && exit 2 ;;
esac
