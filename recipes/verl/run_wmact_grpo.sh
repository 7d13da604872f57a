#!/usr/bin/env bash
# WMAct on GRPO, 7B on 8 GPUs, Sokoban. Further arguments override the YAML: ./run_wmact_grpo.sh wm.turn_budget.every=50
# Its levels take some ten minutes to make, once.
set -euo pipefail
bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/wmact.sh"
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name wmact_grpo "$@"
