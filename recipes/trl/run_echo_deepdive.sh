#!/usr/bin/env bash
# ECHO on deepdive, 4B on 8 GPUs, episodes of TURNS turns (200). Further arguments override the YAML:
# TURNS=10 ./run_echo_deepdive.sh --echo_coeff 0.05
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../pipelines/echo.sh" trl echo_deepdive "$@"
