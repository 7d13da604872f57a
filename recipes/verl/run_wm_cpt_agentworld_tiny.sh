#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), tiny, on PROCESSES CPU processes (1), from a checkout. Further
# arguments override the YAML: ./run_wm_cpt_agentworld_tiny.sh optim.lr=1e-3
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
policy=runs/tiny_random work=runs/wm_cpt_agentworld_tiny
out=$work/verl.parquet
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "$work"
[ -f $work/corpus.jsonl ] || for way in up down left right; do
  printf '{"text": "A grid has walls. Who moves %s leaves a cell and stands in the next one, unless a wall is there."}\n' $way
done >$work/corpus.jsonl
[ -f $out ] || python -m wm_plugin.cli.main data build $policy/rollouts.jsonl --as cpt --prompts mcp --corpus $work/corpus.jsonl \
  --host verl --out $out --tokenizer $policy --max-tokens 4096
exec torchrun --standalone --nproc_per_node="${PROCESSES:-1}" -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_cpt_agentworld_tiny "$@"
