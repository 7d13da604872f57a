#!/usr/bin/env bash
# Policy RL on τ²-bench as in RWML, on 8 GPUs. Further arguments override the YAML:
# ./run_policy_tau2.sh --model_name_or_path runs/rwml_tau2_grpo
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/policy_tau2.yaml" "$@"
