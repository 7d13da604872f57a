#!/usr/bin/env bash
# RWML on GSPO, tiny, on CPUs, from a checkout. Further arguments override the YAML: ./run_rwml_gspo_tiny.sh data.seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
[ -f runs/rwml_sft_tiny/global_step_180/huggingface/config.json ] || bash "$recipes/verl/run_rwml_sft_tiny.sh"
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name rwml_gspo_tiny "$@"
