#!/usr/bin/env bash
# RWML on τ²-bench as in the paper, in one command on 8 GPUs: rollouts, filters, rows, and GRPO. ../pipelines/rwml_tau2.sh says what it
# needs. With ALGORITHM=gspo it trains by GSPO, with TRAJECTORIES=FILE on rollouts that you have.
# Further arguments override the YAML: ./run_rwml_tau2.sh data.seed=1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/rwml_tau2.sh" verl
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name "rwml_tau2_${ALGORITHM:-grpo}" "$@"
