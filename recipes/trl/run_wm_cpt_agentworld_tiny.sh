#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), tiny, on a CPU. Further arguments override the YAML:
# ./run_wm_cpt_agentworld_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
policy=runs/tiny_random work=runs/wm_cpt_agentworld_tiny
out=$work/trl.parquet
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "$work"
[ -f $work/corpus.jsonl ] || for way in up down left right; do
  printf '{"text": "A grid has walls. Who moves %s leaves a cell and stands in the next one, unless a wall is there."}\n' $way
done >$work/corpus.jsonl
[ -f $out ] || python -m wm_plugin.cli.main data build $policy/rollouts.jsonl --as cpt --prompts mcp --corpus $work/corpus.jsonl \
  --host trl --out $out --tokenizer $policy --max-tokens 4096
exec trl sft --config "$here/wm_cpt_agentworld_tiny.yaml" "$@"
