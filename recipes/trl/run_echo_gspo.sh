#!/usr/bin/env bash
# ECHO on GSPO, 7B on 8 GPUs. Further arguments override the YAML: ./run_echo_gspo.sh --echo_coeff 0.005
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec accelerate launch --config_file "$here/accelerate_fsdp2.yaml" -m wm_plugin.trl.train --config "$here/echo_gspo.yaml" "$@"
