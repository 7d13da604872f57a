#!/usr/bin/env bash
# RWML on GSPO, tiny, on a CPU: real transitions of the SQL tasks, WM-SFT, and then the reward on predictions.
# Further arguments override the YAML: ./run_rwml_gspo_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -f runs/rwml_sft_tiny/config.json ] || "$here/run_rwml_sft_tiny.sh"
exec python -m wm_plugin.trl.train --config "$here/rwml_gspo_tiny.yaml" "$@"
