#!/usr/bin/env bash
# WMAct on GRPO, tiny, on CPUs, from a checkout. Further arguments override the YAML: ./run_wmact_grpo_tiny.sh wm.turn_budget.every=2
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
on_the_grid runs/tiny_verl
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name wmact_grpo_tiny "$@"
