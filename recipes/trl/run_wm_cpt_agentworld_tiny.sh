#!/usr/bin/env bash
# World model by continual pre-training (Qwen-AgentWorld), tiny, on a CPU. Further arguments override the YAML:
# ./run_wm_cpt_agentworld_tiny.sh --max_steps 5
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bash "$here/../pipelines/wm_sft_tiny.sh" trl wm_cpt_agentworld_tiny
exec trl sft --config "$here/wm_cpt_agentworld_tiny.yaml" "$@"
