#!/usr/bin/env bash
# Policy RL on ALFWorld as in RWML, on 8 GPUs: the rows, and main_ppo. Further arguments override the YAML:
# ./run_policy_alfworld.sh actor_rollout_ref.model.path=runs/rwml_alfworld_grpo/global_step_100/actor/huggingface
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/policy_rows.sh" alfworld "${CUSTOMER:-http://localhost:8002/v1}" runs/policy_alfworld
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name policy_alfworld "$@"
