#!/usr/bin/env bash
# World model by SFT on transitions of a domain (Qwen-AgentWorld), 7B on 8 GPUs.
# TRAJECTORIES is a file of rollouts in any format that wm data convert reads;
# DOMAIN names the prompts. Further arguments override the YAML: ./run_wm_sft_agentworld.sh optim.lr=5e-6
set -euo pipefail
out=runs/wm_sft_agentworld/verl.parquet
mkdir -p "${out%/*}"
[ -f "$out" ] || python -m wm_plugin.cli.main data build "${TRAJECTORIES:?a file of rollouts}" --as agentworld-sft \
  --prompts "${DOMAIN:?mcp, search, terminal, swe, android, web or os}" \
  --host verl --out "$out" --tokenizer Qwen/Qwen2.5-7B-Instruct --max-tokens 16384 --turn-information
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_agentworld "$@"
