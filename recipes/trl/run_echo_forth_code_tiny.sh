#!/usr/bin/env bash
# ECHO (code) with evaluations on several worlds, tiny, on one CPU process. Further arguments override the YAML:
# ./run_echo_forth_code_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -f runs/tiny/config.json ] || python -m wm_plugin.lab.tiny --out runs/tiny --seed 0
exec python -m wm_plugin.trl.train --config "$here/echo_forth_code_tiny.yaml" "$@"
