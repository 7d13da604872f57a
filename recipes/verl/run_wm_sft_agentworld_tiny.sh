#!/usr/bin/env bash
# World model by SFT with thinking (Qwen-AgentWorld), tiny, on PROCESSES CPU processes (1), from a checkout: the best of three
# outputs of a server on localhost that guesses, by a judge there that compares words. Further arguments override the YAML:
# ./run_wm_sft_agentworld_tiny.sh optim.lr=1e-3
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
policy=runs/tiny_random work=runs/wm_sft_agentworld_tiny data=(python -m wm_plugin.cli.main data)
out=$work/verl.parquet judge='{"base_url": "http://127.0.0.1:8399/v1", "model": "judge"}'
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "$work"
[ -f $work/one.jsonl ] || "${data[@]}" expand $policy/rollouts.jsonl --turns one --out $work/one.jsonl
[ -f $out ] || python -m wm_plugin.tiny.judge "${data[@]}" best $work/one.jsonl --prompts mcp --turn-information --n 3 \
  --server http://127.0.0.1:8399/v1 --server-model reasoner --judge rubric --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" \
  --compare reference --compare-args "{\"server\": $judge}" --threshold 0.1 \
  --host verl --out $out --tokenizer $policy --max-tokens 4096
exec torchrun --standalone --nproc_per_node="${PROCESSES:-1}" -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_agentworld_tiny "$@"
