#!/usr/bin/env bash
# An agent by SFT on successful trajectories of the grid (Word2World, section 7.2), tiny, on PROCESSES CPU processes (1), from a checkout.
# Further arguments override the YAML: ./run_agent_sft_tiny.sh optim.lr=1e-3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
bash "$recipes/pipelines/wm_sft_tiny.sh" verl agent_sft_tiny
exec torchrun --standalone --nproc_per_node="${PROCESSES:-1}" -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name agent_sft_tiny "$@"
