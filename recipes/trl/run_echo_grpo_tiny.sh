#!/usr/bin/env bash
# ECHO on GRPO, tiny, on PROCESSES CPU processes (1). Further arguments override the YAML: ./run_echo_grpo_tiny.sh --max_steps 5
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pipelines/trl_tiny.sh"
exec "${launch[@]}" -m wm_plugin.trl.train --config "$recipes/trl/echo_grpo_tiny.yaml" "$@"
