#!/usr/bin/env bash
# RWML on τ²-bench as in the paper, in one command on 8 GPUs: rollouts, filters, rows, and GRPO. ../pipelines/rwml_tau2.sh says what it
# needs. With ALGORITHM=gspo it trains by GSPO, with TRAJECTORIES=FILE on rollouts that you have.
# Further arguments override the YAML: ./run_rwml_tau2.sh --seed 1
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/rwml_tau2.sh" trl
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" \
  -m wm_plugin.trl.train --config "$here/rwml_tau2_${ALGORITHM:-grpo}.yaml" "$@"
