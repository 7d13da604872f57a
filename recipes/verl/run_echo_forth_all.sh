#!/usr/bin/env bash
# ECHO (all) on forth-lang, 4B on 8 GPUs, episodes of TURNS turns (200). Further arguments override the YAML:
# TURNS=10 ./run_echo_forth_all.sh wm.coeff=0.05
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/echo_forth.sh" verl echo_forth_all "$@"
