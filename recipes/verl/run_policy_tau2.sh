#!/usr/bin/env bash
# Policy RL on τ²-bench as in RWML, on 8 GPUs: the rows, and main_ppo. Further arguments override the YAML:
# ./run_policy_tau2.sh actor_rollout_ref.model.path=runs/rwml_tau2_grpo/global_step_100/actor/huggingface
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/policy_rows.sh" tau2 "${CUSTOMER:-http://localhost:8002/v1}" runs/policy_tau2
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name policy_tau2 "$@"
