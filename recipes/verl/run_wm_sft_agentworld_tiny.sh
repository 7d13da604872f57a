#!/usr/bin/env bash
# World model by SFT on transitions of a domain (Qwen-AgentWorld), tiny, on PROCESSES CPU processes (1), from a checkout.
# Further arguments override the YAML: ./run_wm_sft_agentworld_tiny.sh optim.lr=1e-3
set -euo pipefail
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/tests
[ -d "$tests/support/verl_cpu" ] || { echo "${0##*/} runs from a checkout only: there is no $tests/support/verl_cpu" >&2; exit 2; }
export PYTHONPATH="$tests${PYTHONPATH:+:$PYTHONPATH}" VERL_USE_EXTERNAL_MODULES=wm_plugin.verl,support.verl_cpu
policy=runs/tiny_random out=runs/wm_sft_agentworld_tiny/verl.parquet
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "${out%/*}"
[ -f $out ] || python -m wm_plugin.cli.main data build $policy/rollouts.jsonl --as agentworld-sft --prompts mcp \
  --host verl --out $out --tokenizer $policy --turn-information --max-tokens 4096
exec torchrun --standalone --nproc_per_node="${PROCESSES:-1}" -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_agentworld_tiny "$@"
