#!/usr/bin/env bash
# World model by SFT on transitions of a domain (Qwen-AgentWorld), tiny, on a CPU.
# Further arguments override the YAML: ./run_wm_sft_agentworld_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
policy=runs/tiny_random out=runs/wm_sft_agentworld_tiny/trl.parquet
[ -f $policy/config.json ] || python -m wm_plugin.tiny --out $policy --seed 0 --random
[ -f $policy/rollouts.jsonl ] || python -m wm_plugin.tiny.rollouts --out $policy/rollouts.jsonl --count 256
mkdir -p "${out%/*}"
[ -f $out ] || python -m wm_plugin.cli.main data build $policy/rollouts.jsonl --as agentworld-sft --prompts mcp \
  --host trl --out $out --tokenizer $policy --turn-information --max-tokens 4096
exec trl sft --config "$here/wm_sft_agentworld_tiny.yaml" "$@"
