#!/usr/bin/env bash
# World model by SFT on transitions of a domain (Qwen-AgentWorld), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads;
# DOMAIN names the prompts. Further arguments override the YAML: ./run_wm_sft_agentworld.sh --learning_rate 5e-6
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=runs/wm_sft_agentworld/trl.parquet
mkdir -p "${out%/*}"
[ -f "$out" ] || python -m wm_plugin.cli.main data build "${TRAJECTORIES:?a file of rollouts}" --as agentworld-sft \
  --prompts "${DOMAIN:?mcp, search, terminal, swe, android, web or os}" \
  --host trl --out "$out" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 16384 --turn-information
exec trl sft --config "$here/wm_sft_agentworld.yaml" --accelerate_config "$here/accelerate_fsdp2.yaml" "$@"
