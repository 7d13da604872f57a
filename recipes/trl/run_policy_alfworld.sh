#!/usr/bin/env bash
# Policy RL on ALFWorld as in RWML, on 8 GPUs. Further arguments override the YAML:
# ./run_policy_alfworld.sh --model_name_or_path runs/rwml_alfworld_grpo
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/policy_alfworld.yaml" "$@"
