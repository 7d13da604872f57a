#!/usr/bin/env bash
# WMAct on GRPO, 7B on 8 GPUs, Sokoban. Further arguments override the YAML: ./run_wmact_grpo.sh --echo_coeff 0.05
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/wmact_grpo.yaml" "$@"
