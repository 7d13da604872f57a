#!/usr/bin/env bash
# ECHO (all) with evaluations on several worlds, tiny, on CPUs, from a checkout. Further arguments override the YAML:
# ./run_echo_forth_all_tiny.sh wm.coeff=0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
bash "$recipes/pipelines/echo_tiny.sh" forth
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_forth_all_tiny "$@"
