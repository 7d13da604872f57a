#!/usr/bin/env bash
# World model by SFT on transitions (RWML's baseline WM-SFT), tiny, on PROCESSES CPU processes (1), from a checkout.
# Further arguments override the YAML: ./run_wm_sft_rwml_tiny.sh optim.lr=1e-3
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
bash "$recipes/pipelines/wm_sft_tiny.sh" verl wm_sft_rwml_tiny
exec torchrun --standalone --nproc_per_node="${PROCESSES:-1}" -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name wm_sft_rwml_tiny "$@"
