#!/usr/bin/env bash
# World model by SFT on transitions (RWML's baseline WM-SFT), tiny, on a CPU.
# Further arguments override the YAML: ./run_wm_sft_rwml_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft_tiny.sh" trl wm_sft_rwml_tiny
exec trl sft --config "$here/wm_sft_rwml_tiny.yaml" "$@"
