#!/usr/bin/env bash
# ECHO (code) on forth-lang, 4B on 8 GPUs, episodes of TURNS turns (200), or with RUN=500 or RUN=glm
# the paper's other runs. Further arguments override the YAML:
# TURNS=10 ./run_echo_forth_code.sh --echo_coeff 0.05
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/echo.sh" trl echo_forth_code "$@"
