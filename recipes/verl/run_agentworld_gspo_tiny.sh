#!/usr/bin/env bash
# Qwen-AgentWorld's GSPO with a rubric and rules, tiny, on CPUs, from a checkout: real transitions of the SQL tasks, WM-SFT, and
# then the reward of a judge on localhost that compares words. Further arguments override the YAML:
# ./run_agentworld_gspo_tiny.sh data.seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
[ -f runs/rwml_sft_tiny/global_step_180/huggingface/config.json ] || bash "$recipes/verl/run_rwml_sft_tiny.sh"
bash "$recipes/pipelines/agentworld_gspo_tiny.sh" verl
exec python -m wm_plugin.lab.tiny.judge python -m verl.trainer.main_ppo \
  --config-path pkg://wm_plugin.recipes.verl --config-name agentworld_gspo_tiny "$@"
