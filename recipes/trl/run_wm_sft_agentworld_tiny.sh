#!/usr/bin/env bash
# World model by SFT with thinking (Qwen-AgentWorld), tiny, on a CPU: the best of three outputs of a server on localhost that
# guesses, by a judge there that compares words. Further arguments override the YAML: ./run_wm_sft_agentworld_tiny.sh
# --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
policy=runs/tiny_random work=runs/wm_sft_agentworld_tiny data=(python -m wm_plugin.cli.main data)
out=$work/trl.parquet judge='{"base_url": "http://127.0.0.1:8399/v1", "model": "judge"}'
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "$work"
[ -f $work/one.jsonl ] || "${data[@]}" expand $policy/rollouts.jsonl --turns one --out $work/one.jsonl
[ -f $out ] || python -m wm_plugin.tiny.judge "${data[@]}" best $work/one.jsonl --prompts mcp --turn-information --n 3 \
  --server http://127.0.0.1:8399/v1 --server-model reasoner --judge rubric --judge-args "{\"server\": $judge, \"scale\": \"unit\"}" \
  --compare reference --compare-args "{\"server\": $judge}" --threshold 0.1 \
  --host trl --out $out --tokenizer $policy --max-tokens 4096
exec trl sft --config "$here/wm_sft_agentworld_tiny.yaml" "$@"
