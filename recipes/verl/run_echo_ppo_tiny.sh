#!/usr/bin/env bash
# ECHO on PPO, tiny, on CPUs, from a checkout. Further arguments override the YAML: ./run_echo_ppo_tiny.sh wm.coeff=0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/verl_tiny.sh"
on_the_grid runs/tiny_random --random
exec python -m verl.trainer.main_ppo --config-path pkg://wm_plugin.recipes.verl --config-name echo_ppo_tiny "$@"
