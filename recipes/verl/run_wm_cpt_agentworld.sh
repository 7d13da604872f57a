#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), 7B on 8 GPUs. TRAJECTORIES is a file of rollouts in any format that
# wm data convert reads, other ones than the other stages'; DOMAIN names the prompts, and CORPUS files of your own texts (.txt,
# .md, .jsonl). Further arguments override the YAML: ./run_wm_cpt_agentworld.sh optim.lr=5e-6
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/wm_sft.sh" verl wm_cpt_agentworld
exec torchrun --standalone --nproc_per_node=8 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_cpt_agentworld "$@"
