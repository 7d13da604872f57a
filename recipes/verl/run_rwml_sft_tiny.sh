#!/usr/bin/env bash
# The start of the tiny RWML recipes, on a CPU, from a checkout: rollouts of the SQL tasks, rows of them for all three, and WM-SFT.
# Three in ten tasks are held out. SEED=1 makes another model and other data; further arguments override the YAML.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
bash "$recipes/pipelines/rwml_sft_tiny.sh" verl
exec torchrun --standalone --nproc_per_node=1 -m verl.trainer.sft_trainer \
  --config-path pkg://wm_plugin.recipes.verl --config-name rwml_sft_tiny "$@"
